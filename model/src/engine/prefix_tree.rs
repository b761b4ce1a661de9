//! Which tokens lie in which block of the cache: a radix tree whose nodes are blocks.
//!
//! A path from a root is a sequence. Inner nodes are full; a leaf may be filled in part, and grows only in the hands of
//! the one sequence that made it or took it over. Blocks that nobody uses stay until their room is needed; those used
//! longest ago go first, the ends of sequences before their beginnings.

use std::collections::BTreeSet;

/// A block of the cache and what it holds; the block's number is the node's place.
#[derive(Debug, Default)]
struct Node {
    /// The tokens whose keys and values are there.
    tokens: Vec<u32>,
    parent: Option<usize>,
    children: Vec<usize>,
    /// Sequences under way whose path leads through it.
    n_users: usize,
    last_used: u64,
}

/// The tree. Only bookkeeping: the caller does to the cache what the answers say.
#[derive(Debug)]
pub(super) struct PrefixTree {
    block_len: usize,
    n_blocks: usize,
    nodes: Vec<Node>,
    roots: Vec<usize>,
    free: Vec<usize>,
    /// Nodes with users.
    n_used: usize,
    /// Nodes without users and children, by when they were used last.
    unused_leaves: BTreeSet<(u64, usize)>,
    clock: u64,
}

/// What the cache has of a sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    /// Full blocks.
    blocks: Vec<usize>,
    /// A block whose first tokens come next, and how many of them.
    part: Option<(usize, usize)>,
    /// All tokens of it.
    pub n_tokens: usize,
}

/// The path of a sequence under way.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Path {
    /// Its blocks in order.
    pub blocks: Vec<usize>,
    /// Tokens that the cache has of it.
    pub n_tokens: usize,
}

/// The first block must be copied to the second before anything is computed.
pub(super) type Copy = (usize, usize);

impl PrefixTree {
    pub(super) fn new(n_blocks: usize, block_len: usize) -> Self {
        Self {
            block_len,
            n_blocks,
            nodes: Vec::new(),
            roots: Vec::new(),
            free: Vec::new(),
            n_used: 0,
            unused_leaves: BTreeSet::new(),
            clock: 0,
        }
    }

    /// Blocks that no sequence under way uses.
    pub(super) fn n_available(&self) -> usize {
        self.n_blocks - self.n_used
    }

    /// Tokens that all blocks together can hold.
    pub(super) fn capacity(&self) -> usize {
        self.n_blocks.saturating_mul(self.block_len)
    }

    /// Raises the number of blocks to this; it never falls.
    pub(super) fn grow(&mut self, n_blocks: usize) {
        self.n_blocks = self.n_blocks.max(n_blocks);
    }

    /// Blocks for a sequence.
    pub(super) fn n_blocks_for(&self, n_tokens: usize) -> usize {
        n_tokens.div_ceil(self.block_len)
    }

    /// The longest beginning of a sequence that the cache has, at most `limit` tokens.
    pub(super) fn longest_prefix(&self, tokens: &[u32], limit: usize) -> Prefix {
        let mut rest = tokens.get(..limit).unwrap_or(tokens);
        let mut prefix = Prefix::default();
        let mut children = &self.roots;
        loop {
            let common = |&node: &usize| (common_prefix(&self.nodes[node].tokens, rest), node);
            // A full match is the only one. Of equal parts, an unused one, which may be taken over, and then the first.
            let best = children.iter().map(common).rev().max_by_key(|&(n, node)| {
                (n, self.nodes[node].n_users == 0 && self.nodes[node].tokens.len() == n)
            });
            let Some((n, node)) = best.filter(|(n, _)| *n > 0) else { return prefix };
            prefix.n_tokens += n;
            if n < self.block_len {
                prefix.part = Some((node, n));
                return prefix;
            }
            prefix.blocks.push(node);
            rest = &rest[n..];
            children = &self.nodes[node].children;
        }
    }

    /// Blocks that a sequence of `n_tokens` needs beside those of its prefix that are in use already.
    pub(super) fn n_missing(&self, prefix: &Prefix, n_tokens: usize) -> usize {
        let n_in_use = prefix.blocks.iter().filter(|&&block| self.nodes[block].n_users > 0).count();
        self.n_blocks_for(n_tokens).saturating_sub(n_in_use)
    }

    /// Starts a sequence from what the cache has of it.
    ///
    /// An unused end of a sequence that the prefix wholly holds is taken over; otherwise a block that is shared in
    /// part is to be copied, unless there is no room for that.
    pub(super) fn begin(&mut self, prefix: Prefix) -> (Path, Option<Copy>) {
        let Prefix { blocks, part, n_tokens } = prefix;
        let mut path = Path { n_tokens: blocks.len() * self.block_len, blocks };
        for &block in &path.blocks {
            self.claim(block);
        }
        let Some((source, n)) = part else { return (path, None) };
        if self.nodes[source].n_users == 0 && self.nodes[source].tokens.len() == n {
            self.claim(source);
            path.blocks.push(source);
            path.n_tokens = n_tokens;
            return (path, None);
        }
        self.claim(source);
        let target = self.add(path.blocks.last().copied());
        self.unclaim(source);
        let Some(target) = target else { return (path, None) };
        self.nodes[target].tokens = self.nodes[source].tokens[..n].to_vec();
        path.blocks.push(target);
        path.n_tokens = n_tokens;
        (path, Some((source, target)))
    }

    /// Makes blocks for `n` further tokens; `false` if there are not enough, and the path then has those there were.
    pub(super) fn extend(&mut self, path: &mut Path, n: usize) -> bool {
        while path.blocks.len() < self.n_blocks_for(path.n_tokens + n) {
            match self.add(path.blocks.last().copied()) {
                Some(block) => path.blocks.push(block),
                None => return false,
            }
        }
        true
    }

    /// Notes that tokens were computed, for which there are blocks.
    ///
    /// A block that has become full and is what a neighbour is already, is given up for that one: the same tokens after
    /// the same beginning have the same keys and values. So no two paths hold the same full block twice, and the first
    /// that matches is the only one.
    pub(super) fn push(&mut self, path: &mut Path, tokens: impl Iterator<Item = u32>) {
        for token in tokens {
            let place = path.n_tokens / self.block_len;
            let block = path.blocks[place];
            self.nodes[block].tokens.push(token);
            path.n_tokens += 1;
            if path.n_tokens.is_multiple_of(self.block_len) {
                self.merge(path, place);
            }
        }
    }

    /// Replaces a full block of a path, which nobody else uses, by a neighbour that holds the same, if there is one.
    fn merge(&mut self, path: &mut Path, place: usize) {
        let block = path.blocks[place];
        let Node { tokens, parent, .. } = &self.nodes[block];
        let siblings = parent.map_or(&self.roots, |parent| &self.nodes[parent].children);
        let twin = siblings.iter().find(|&&other| other != block && self.nodes[other].tokens == *tokens);
        let Some(&twin) = twin else { return };
        self.claim(twin);
        // What follows of the path is empty as yet.
        for child in std::mem::take(&mut self.nodes[block].children) {
            self.nodes[child].parent = Some(twin);
            self.nodes[twin].children.push(child);
        }
        path.blocks[place] = twin;
        self.unclaim(block);
        self.remove(block);
    }

    /// Ends the use of a path. What was computed stays for whoever goes on from it, if it `is_kept`.
    pub(super) fn release(&mut self, path: Path, is_kept: bool) {
        self.clock += 1;
        for &block in path.blocks.iter().rev() {
            self.unclaim(block);
            let node = &self.nodes[block];
            if node.n_users == 0 && (node.tokens.is_empty() || (!is_kept && node.children.is_empty())) {
                self.remove(block);
            }
        }
    }

    /// Forgets everything; no path is valid any more.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.n_blocks, self.block_len);
    }

    fn claim(&mut self, block: usize) {
        let node = &mut self.nodes[block];
        if node.n_users == 0 {
            self.n_used += 1;
            self.unused_leaves.remove(&(node.last_used, block));
        }
        node.n_users += 1;
    }

    fn unclaim(&mut self, block: usize) {
        let node = &mut self.nodes[block];
        node.n_users -= 1;
        if node.n_users == 0 {
            node.last_used = self.clock;
            self.n_used -= 1;
            self.note_if_unused(block);
        }
    }

    fn note_if_unused(&mut self, block: usize) {
        let node = &self.nodes[block];
        if node.n_users == 0 && node.children.is_empty() {
            self.unused_leaves.insert((node.last_used, block));
        }
    }

    /// A new empty node, in use, from a block that is free or can be.
    fn add(&mut self, parent: Option<usize>) -> Option<usize> {
        if self.free.is_empty() && self.nodes.len() == self.n_blocks {
            let &(_, oldest) = self.unused_leaves.first()?;
            self.remove(oldest);
        }
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                self.nodes.push(Node::default());
                self.nodes.len() - 1
            }
        };
        self.nodes[block] = Node { parent, ..Node::default() };
        self.siblings(parent).push(block);
        self.claim(block);
        Some(block)
    }

    /// Takes an unused leaf out.
    fn remove(&mut self, block: usize) {
        let Node { parent, last_used, .. } = std::mem::take(&mut self.nodes[block]);
        self.unused_leaves.remove(&(last_used, block));
        self.siblings(parent).retain(|&sibling| sibling != block);
        self.free.push(block);
        if let Some(parent) = parent {
            self.note_if_unused(parent);
        }
    }

    fn siblings(&mut self, parent: Option<usize>) -> &mut Vec<usize> {
        match parent {
            Some(parent) => &mut self.nodes[parent].children,
            None => &mut self.roots,
        }
    }
}

/// Number of tokens two sequences start with alike.
pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
#[path = "prefix_tree_tests.rs"]
mod tests;
