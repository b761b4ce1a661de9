//! Sequences that share prefixes, laid out so that each shared token is one row.

use std::ops::Range;

/// Rows that are consecutive in a tensor and in a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Position of the first of them in the sequence.
    pub position: usize,
    /// Its row.
    pub row: usize,
    /// How many they are.
    pub len: usize,
}

/// The rows that one sequence adds to those of its predecessors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The new rows; `len` is 0 where a sequence is a prefix of another or equal to it.
    pub own: Stretch,
    /// All rows of the sequence in the order of positions, the new ones last.
    pub path: Vec<Stretch>,
}

impl Run {
    /// Number of positions of the sequence.
    pub fn len(&self) -> usize {
        self.own.position + self.own.len
    }

    /// Whether the sequence has no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row of a position below [`Run::len`].
    pub fn row(&self, position: usize) -> usize {
        let after = self.path.partition_point(|stretch| stretch.position <= position);
        let stretch = &self.path[after - 1];
        stretch.row + position - stretch.position
    }

    /// The rows from a position on, in order.
    pub fn rows_from(&self, position: usize) -> impl Iterator<Item = usize> + '_ {
        self.path.iter().flat_map(move |stretch| {
            let skipped = position.saturating_sub(stretch.position).min(stretch.len);
            stretch.row + skipped..stretch.row + stretch.len
        })
    }
}

/// The prefix tree of some sequences: one row for each distinct prefix.
///
/// Sequences are taken in lexicographic order, so that each shares with its predecessor all that it shares with any
/// before it; rows are numbered in that order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forest {
    runs: Vec<Run>,
    /// Runs that have no row in common with those of another range.
    trees: Vec<Range<usize>>,
    n_rows: usize,
}

impl Forest {
    /// Lays out sequences that are in lexicographic order.
    pub fn new(sequences: &[&[u32]]) -> Self {
        debug_assert!(sequences.is_sorted(), "sequences in lexicographic order");
        let mut forest = Self::default();
        let mut last: &[u32] = &[];
        for (index, sequence) in sequences.iter().enumerate() {
            let shared = last.iter().zip(*sequence).take_while(|(a, b)| a == b).count();
            let mut path = Vec::new();
            if let Some(before) = forest.runs.last() {
                let kept = before.path.iter().filter(|stretch| stretch.position < shared);
                path.extend(kept.map(|s| Stretch { len: s.len.min(shared - s.position), ..*s }));
            }
            let own = Stretch { position: shared, row: forest.n_rows, len: sequence.len() - shared };
            if own.len > 0 {
                path.push(own);
            }
            match forest.trees.last_mut() {
                Some(tree) if shared > 0 || sequence.is_empty() => tree.end = index + 1,
                _ => forest.trees.push(index..index + 1),
            }
            forest.n_rows += own.len;
            forest.runs.push(Run { own, path });
            last = sequence;
        }
        forest
    }

    /// One run for each sequence, in their order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The runs of each tree.
    pub fn trees(&self) -> impl Iterator<Item = &[Run]> {
        self.trees.iter().map(|range| &self.runs[range.clone()])
    }

    /// Number of distinct prefixes.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The position of each row.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.runs.iter().flat_map(|run| run.own.position..run.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn three_sequences_by_hand() {
        // 1 2 3 | 1 2 4 5 | 1 2 4 6 | 7: rows 0..3, then 4 5 at 3..5, 6 at 5, 7 at 6.
        let forest = Forest::new(&[&[1, 2, 3], &[1, 2, 4, 5], &[1, 2, 4, 6], &[7]]);
        let stretch = |position, row, len| Stretch { position, row, len };
        assert_eq!(forest.n_rows(), 7);
        assert_eq!(forest.runs()[1].path, [stretch(0, 0, 2), stretch(2, 3, 2)]);
        assert_eq!(forest.runs()[2].path, [stretch(0, 0, 2), stretch(2, 3, 1), stretch(3, 5, 1)]);
        assert_eq!(forest.trees().map(<[Run]>::len).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(forest.positions().collect::<Vec<_>>(), [0, 1, 2, 2, 3, 3, 0]);
        assert_eq!(forest.runs()[2].rows_from(1).collect::<Vec<_>>(), [1, 3, 5]);
    }

    #[test]
    fn a_branch_where_the_one_before_branched() {
        // 1 2 3 | 1 2 4 | 1 2 5: nothing of the second's own rows, which begin where the third parts from it.
        let forest = Forest::new(&[&[1, 2, 3], &[1, 2, 4], &[1, 2, 5]]);
        let stretch = |position, row, len| Stretch { position, row, len };
        assert_eq!(forest.runs()[2].path, [stretch(0, 0, 2), stretch(2, 4, 1)]);
        // A sequence that the one before begins with has the rows of that, and none of its own.
        let forest = Forest::new(&[&[1, 2, 3], &[1, 2, 4], &[1, 2, 4]]);
        assert_eq!(forest.runs()[2].path, forest.runs()[1].path);
        assert_eq!(forest.runs()[2].own, stretch(3, 4, 0));
    }

    #[test]
    fn one_token_in_common_makes_one_tree() {
        let forest = Forest::new(&[&[1, 2], &[1, 3], &[2, 3]]);
        assert_eq!(forest.trees().map(<[Run]>::len).collect::<Vec<_>>(), [2, 1]);
    }

    proptest! {
        #[test]
        fn rows_are_the_distinct_prefixes(
            mut sequences in prop::collection::vec(prop::collection::vec(0_u32..3, 0..7), 0..12),
        ) {
            sequences.sort();
            let slices: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
            let forest = Forest::new(&slices);
            let distinct: BTreeSet<&[u32]> =
                slices.iter().flat_map(|s| (1..=s.len()).map(|n| &s[..n])).collect();
            prop_assert_eq!(forest.n_rows(), distinct.len());
            // Equal prefixes have one row, different ones different rows.
            let mut row_of = std::collections::BTreeMap::new();
            for (run, sequence) in forest.runs().iter().zip(&slices) {
                prop_assert_eq!(run.len(), sequence.len());
                let rows: Vec<usize> = (0..sequence.len()).map(|p| run.row(p)).collect();
                prop_assert_eq!(&rows, &run.rows_from(0).collect::<Vec<_>>());
                for (position, row) in rows.into_iter().enumerate() {
                    let known = *row_of.entry(&sequence[..=position]).or_insert(row);
                    prop_assert_eq!(known, row);
                }
            }
            let rows: BTreeSet<usize> = row_of.values().copied().collect();
            prop_assert_eq!(rows.len(), distinct.len());
        }
    }
}
