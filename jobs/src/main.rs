//! The command line of envace.

fn main() {}
