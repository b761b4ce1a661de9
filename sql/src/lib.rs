//! Every query of envace, and the DataFusion session over a store.
