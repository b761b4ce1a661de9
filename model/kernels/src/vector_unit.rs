use pulp::Arch;

/// Names the vector unit of this processor, which can change the last bits of row sums no more than it can change
/// anything else: see the crate's rules. It stands in fingerprints all the same, because compilers may differ.
pub fn vector_unit() -> String {
    format!("{:?}", Arch::new()).to_lowercase()
}
