//! What only the whole of envace can show.
