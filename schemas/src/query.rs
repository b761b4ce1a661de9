/// One SQL query: a name for messages and lineage, and its text, which enters the stage key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Query {
    /// Where the text comes from, such as `advantage/advantages.sql`.
    pub name: &'static str,
    /// One `SELECT`, without a semicolon, with named parameters such as `$leave_one_out`.
    pub text: &'static str,
}
