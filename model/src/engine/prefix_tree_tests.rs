//! The books of the tree, by hand and after any order of acts.

use proptest::prelude::*;

use super::*;

/// Puts a sequence in, and returns its path and whether something was copied.
fn start(tree: &mut PrefixTree, tokens: &[u32]) -> (Path, Option<Copy>) {
    let prefix = tree.longest_prefix(tokens, tokens.len() - 1);
    let (mut path, copy) = tree.begin(prefix);
    let rest = tokens.len() - path.n_tokens;
    assert!(tree.extend(&mut path, rest));
    tree.push(&mut path, tokens[tokens.len() - rest..].iter().copied());
    (path, copy)
}

#[test]
fn prefixes_by_hand() {
    // Blocks of 2 tokens; blocks are numbered as they are made.
    let mut tree = PrefixTree::new(6, 2);
    let (first, copy) = start(&mut tree, &[1, 2, 3, 4, 5]);
    assert_eq!((&first.blocks, copy, tree.n_available()), (&vec![0, 1, 2], None, 3));
    // Shares [1, 2]; [3] of [3, 4] is copied.
    let (second, copy) = start(&mut tree, &[1, 2, 3, 9]);
    assert_eq!((&second.blocks, copy, tree.n_available()), (&vec![0, 3], Some((1, 3)), 2));
    // A leaf that grows elsewhere is copied, although it is wholly shared.
    let (third, copy) = start(&mut tree, &[1, 2, 3, 4, 5, 6]);
    assert_eq!((&third.blocks, copy), (&vec![0, 1, 4], Some((2, 4))));
    tree.release(first, true);
    // Block 2 alone is unused: the others are parts of longer paths under way.
    assert_eq!(tree.n_available(), 2);
    // Now the leaf is taken over.
    let (fourth, copy) = start(&mut tree, &[1, 2, 3, 4, 5, 7]);
    assert_eq!((&fourth.blocks, copy), (&vec![0, 1, 2], None));
    // The last token is always left to compute, so of a full block all but one are copied.
    assert_eq!(
        tree.longest_prefix(&[1, 2, 3, 9], 3),
        Prefix { blocks: vec![0], part: Some((1, 1)), n_tokens: 3 }
    );
    tree.release(second, true);
    tree.release(third, true);
    tree.release(fourth, true);
    assert_eq!(tree.n_available(), 6);
}

#[test]
fn what_was_used_longest_ago_goes_first_and_ends_go_before_beginnings() {
    let mut tree = PrefixTree::new(4, 2);
    for tokens in [[1, 2, 3], [1, 2, 4], [5, 6, 7]] {
        let (path, _) = start(&mut tree, &tokens);
        tree.release(path, true);
        // Blocks: 0 = [1, 2], 1 = [3], 2 = [4], 3 = [5, 6]; then [7] needs the room of [3].
    }
    assert_eq!(tree.longest_prefix(&[1, 2, 3, 0], 3).n_tokens, 2);
    assert_eq!(tree.longest_prefix(&[1, 2, 4, 0], 3).n_tokens, 3);
    assert_eq!(tree.longest_prefix(&[5, 6, 7, 0], 3).n_tokens, 3);
    // What is in use stays, however old.
    let (held, _) = start(&mut tree, &[1, 2, 4]);
    let (path, _) = start(&mut tree, &[8, 9]);
    assert_eq!(tree.longest_prefix(&[5, 6, 7, 0], 3).n_tokens, 2);
    let mut more = path;
    assert!(tree.extend(&mut more, 2) && !tree.extend(&mut more, 3), "four blocks are all there are");
    tree.release(more, false);
    assert_eq!(tree.longest_prefix(&[8, 9, 0], 2).n_tokens, 0, "what is not kept is gone");
    tree.release(held, true);
    assert_eq!(tree.n_available(), 4);
}

#[test]
fn a_block_that_two_sequences_fill_alike_is_kept_once() {
    let mut tree = PrefixTree::new(8, 2);
    let (mut first, _) = start(&mut tree, &[1, 2, 3]);
    let (mut second, copy) = start(&mut tree, &[1, 2, 3]);
    assert_eq!((&first.blocks, &second.blocks, copy), (&vec![0, 1], &vec![0, 2], None));
    // Room for three more, of which the first fills the block: [4], [5, 6].
    assert!(tree.extend(&mut first, 3) && tree.extend(&mut second, 3));
    tree.push(&mut first, [4, 5, 6].into_iter());
    assert_eq!(tree.n_available(), 8 - 5);
    tree.push(&mut second, [4, 7].into_iter());
    assert_eq!((&first.blocks, &second.blocks), (&vec![0, 1, 3], &vec![0, 1, 4]));
    assert_eq!(tree.n_available(), 8 - 4);
    tree.release(second, true);
    assert_eq!(
        tree.longest_prefix(&[1, 2, 3, 4, 7, 0], 5),
        Prefix { blocks: vec![0, 1], part: Some((4, 1)), n_tokens: 5 }
    );
    tree.release(first, true);
    assert_eq!(tree.longest_prefix(&[1, 2, 3, 4, 5, 6, 0], 6).n_tokens, 6);
}

proptest! {
    /// Any order of beginnings, growth and ends leaves a tree whose books are right.
    #[test]
    fn books_are_right(
        acts in prop::collection::vec((0_usize..4, 0_usize..8, prop::collection::vec(0_u32..3, 1..14)), 1..60),
        n_blocks in 1_usize..24,
    ) {
        let mut tree = PrefixTree::new(n_blocks, 3);
        let mut live: Vec<(Path, Vec<u32>)> = Vec::new();
        for (act, which, tokens) in acts {
            match act {
                0 if !live.is_empty() => {
                    let (path, _) = live.swap_remove(which % live.len());
                    tree.release(path, which % 2 == 0);
                }
                1 if !live.is_empty() => {
                    let place = which % live.len();
                    let (path, held) = &mut live[place];
                    if tree.extend(path, tokens.len()) {
                        tree.push(path, tokens.iter().copied());
                        held.extend(&tokens);
                    }
                }
                _ => {
                    let prefix = tree.longest_prefix(&tokens, tokens.len() - 1);
                    if tree.n_missing(&prefix, tokens.len()) > tree.n_available() {
                        continue;
                    }
                    let (path, _) = tree.begin(prefix);
                    live.push((path, tokens));
                    let (path, held) = live.last_mut().unwrap();
                    held.truncate(path.n_tokens);
                }
            }
            for (path, held) in &live {
                let stored: Vec<u32> =
                    path.blocks.iter().flat_map(|&block| tree.nodes[block].tokens.clone()).collect();
                prop_assert_eq!(&stored, held);
                prop_assert_eq!(path.n_tokens, held.len());
            }
            let used: BTreeSet<usize> = live.iter().flat_map(|(path, _)| path.blocks.clone()).collect();
            prop_assert_eq!(tree.n_available(), n_blocks - used.len());
            for (block, node) in tree.nodes.iter().enumerate() {
                let n_users = live.iter().filter(|(path, _)| path.blocks.contains(&block)).count();
                prop_assert_eq!(node.n_users, n_users);
                let is_free = tree.free.contains(&block);
                let is_unused_leaf = !is_free && n_users == 0 && node.children.is_empty();
                prop_assert_eq!(tree.unused_leaves.contains(&(node.last_used, block)), is_unused_leaf);
                let twins = tree.nodes.iter().enumerate().filter(|(other, twin)| {
                    !tree.free.contains(other) && twin.parent == node.parent && twin.tokens == node.tokens
                });
                prop_assert!(is_free || node.tokens.len() < 3 || twins.count() == 1, "kept once");
                // Children that nothing is computed of yet may wait behind a node that is not full.
                let has_more = node.children.iter().any(|&child| !tree.nodes[child].tokens.is_empty());
                prop_assert!(!has_more || node.tokens.len() == 3, "inner nodes are full");
            }
            let listed: BTreeSet<usize> = tree.unused_leaves.iter().map(|&(_, block)| block).collect();
            prop_assert_eq!(tree.unused_leaves.len(), listed.len(), "each is listed once");
        }
    }
}
