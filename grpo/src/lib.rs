//! The mathematics of EnvACE: advantages, objectives and their gradients, random draws.
