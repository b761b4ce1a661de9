//! Which sequences lie in the cache: the tokens of each slot, who uses it, and when it was used last.

/// A place in the cache for one sequence.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// Tokens whose keys and values are in the cache.
    tokens: Vec<u32>,
    is_busy: bool,
    last_used: u64,
}

/// All slots. Only bookkeeping: the caller does to the cache what the answers say.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    clock: u64,
}

/// Where a new sequence starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placement {
    /// The slot it gets.
    pub slot: usize,
    /// How many of its tokens are computed.
    pub n_reused: usize,
    /// The slot whose first tokens must be copied there; none if they are there already.
    pub copy_from: Option<usize>,
}

impl Slots {
    pub(super) fn new(n_slots: usize) -> Self {
        Self { slots: vec![Slot::default(); n_slots], clock: 0 }
    }

    /// Tokens of a slot that are in the cache.
    pub(super) fn len(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, |slot| slot.tokens.len())
    }

    /// Notes that a token's keys and values were added.
    pub(super) fn push(&mut self, slot: usize, token: u32) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.tokens.push(token);
        }
    }

    /// Leaves the sequence in the cache for whoever goes on from it.
    pub(super) fn release(&mut self, slot: usize) {
        self.clock += 1;
        let clock = self.clock;
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.is_busy = false;
            slot.last_used = clock;
        }
    }

    /// Longest computed prefix of a prompt, leaving at least its last token to compute: (slot, tokens).
    ///
    /// Of equals an idle slot that has nothing else comes first, then the lowest.
    pub(super) fn longest_prefix(&self, prompt: &[u32]) -> Option<(usize, usize)> {
        let limit = prompt.len().saturating_sub(1);
        let mut best: Option<(usize, bool, usize)> = None;
        for (index, slot) in self.slots.iter().enumerate() {
            let n = common_prefix(&slot.tokens, prompt).min(limit);
            let is_whole = !slot.is_busy && n == slot.tokens.len();
            if n > 0 && best.is_none_or(|(best_n, best_whole, _)| (n, is_whole) > (best_n, best_whole)) {
                best = Some((n, is_whole, index));
            }
        }
        best.map(|(n, _, index)| (index, n))
    }

    /// Tokens held by idle slots.
    pub(super) fn n_idle_tokens(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.is_busy).map(|slot| slot.tokens.len()).sum()
    }

    /// The idle slot that was used longest ago and holds something; never `except`.
    pub(super) fn oldest_idle(&self, except: Option<usize>) -> Option<usize> {
        let idle = self
            .slots
            .iter()
            .enumerate()
            .filter(|(index, slot)| !slot.is_busy && !slot.tokens.is_empty() && Some(*index) != except);
        idle.min_by_key(|(index, slot)| (slot.last_used, *index)).map(|(index, _)| index)
    }

    /// Forgets what a slot holds.
    pub(super) fn clear(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.tokens.clear();
            slot.is_busy = false;
        }
    }

    /// Gives a prompt a slot, or `None` if all are busy.
    ///
    /// An idle source is taken over if the prompt wholly extends it, if `must_take_over` says so, and if there is no
    /// other slot; otherwise the prefix is to be copied to an empty slot, or to the one used longest ago.
    pub(super) fn place(
        &mut self,
        prompt: &[u32],
        source: Option<(usize, usize)>,
        must_take_over: bool,
    ) -> Option<Placement> {
        let source_slot = source.map(|(slot, _)| slot);
        let n_reused = source.map_or(0, |(_, n)| n);
        let is_idle = |index: usize| self.slots.get(index).is_some_and(|slot| !slot.is_busy);
        let takes_over =
            source_slot.filter(|&slot| is_idle(slot) && (must_take_over || self.len(slot) == n_reused));
        let empty = || self.slots.iter().position(|slot| !slot.is_busy && slot.tokens.is_empty());
        let last_resort = || source_slot.filter(|&slot| is_idle(slot));
        let slot =
            takes_over.or_else(empty).or_else(|| self.oldest_idle(source_slot)).or_else(last_resort)?;
        let copy_from = source_slot.filter(|&source| source != slot);
        let place = self.slots.get_mut(slot)?;
        place.is_busy = true;
        place.tokens.clear();
        place.tokens.extend_from_slice(prompt.get(..n_reused)?);
        Some(Placement { slot, n_reused, copy_from })
    }
}

/// Number of tokens two sequences start with alike.
pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(sequences: &[(&[u32], bool)]) -> Slots {
        let mut out = Slots::new(sequences.len());
        for (index, (tokens, is_busy)) in sequences.iter().enumerate() {
            tokens.iter().for_each(|&token| out.push(index, token));
            out.release(index);
            out.slots[index].is_busy = *is_busy;
        }
        out
    }

    fn place(slots: &mut Slots, prompt: &[u32]) -> Option<Placement> {
        let source = slots.longest_prefix(prompt);
        slots.place(prompt, source, false)
    }

    #[test]
    fn placements_by_hand() {
        // (slots with what they hold and whether they are busy, prompt, expected)
        type Case =
            (&'static [(&'static [u32], bool)], &'static [u32], Option<(usize, usize, Option<usize>)>);
        let cases: &[Case] = &[
            // Nothing cached: an empty slot.
            (&[(&[], false), (&[9], false)], &[1, 2], Some((0, 0, None))),
            // The prompt extends an idle sequence: taken over.
            (&[(&[], false), (&[1, 2], false)], &[1, 2, 3], Some((1, 2, None))),
            // An idle sequence parts from the prompt: copied, so that it stays.
            (&[(&[], false), (&[1, 2, 9], false)], &[1, 2, 3], Some((0, 2, Some(1)))),
            // A busy one is only copied from.
            (&[(&[1, 2], true), (&[], false)], &[1, 2, 3], Some((1, 2, Some(0)))),
            // The last token of the prompt is always computed.
            (&[(&[1, 2, 3], true), (&[], false)], &[1, 2, 3], Some((1, 2, Some(0)))),
            // No empty slot: the one used longest ago, not the source.
            (&[(&[1, 2, 9], false), (&[7], false), (&[8], false)], &[1, 2, 3], Some((1, 2, Some(0)))),
            // Only the source is left.
            (&[(&[1, 2, 9], false), (&[7], true)], &[1, 2, 3], Some((0, 2, None))),
            // The longer prefix wins; of equals an idle one that is wholly used.
            (&[(&[1, 5], false), (&[1, 2, 8], false), (&[1, 2], false)], &[1, 2, 3], Some((2, 2, None))),
            (&[(&[1], true)], &[1, 2], None),
        ];
        for (given, prompt, expected) in cases {
            let mut slots = slots(given);
            let placed = place(&mut slots, prompt);
            let expected =
                expected.map(|(slot, n_reused, copy_from)| Placement { slot, n_reused, copy_from });
            assert_eq!(placed, expected, "{given:?} {prompt:?}");
            if let Some(placed) = placed {
                assert_eq!(slots.slots[placed.slot].tokens, prompt[..placed.n_reused]);
                assert!(slots.slots[placed.slot].is_busy);
            }
        }
    }

    #[test]
    fn a_source_is_taken_over_where_there_is_no_room_for_a_copy() {
        let mut slots = slots(&[(&[], false), (&[1, 2, 9], false)]);
        let source = slots.longest_prefix(&[1, 2, 3]);
        let placed = slots.place(&[1, 2, 3], source, true);
        assert_eq!(placed, Some(Placement { slot: 1, n_reused: 2, copy_from: None }));
    }

    #[test]
    fn counts_and_ages_of_idle_slots() {
        let mut slots = slots(&[(&[1, 2], false), (&[3], true), (&[4, 5, 6], false)]);
        assert_eq!((slots.n_idle_tokens(), slots.oldest_idle(None)), (5, Some(0)));
        slots.release(0);
        assert_eq!(slots.oldest_idle(None), Some(2));
        assert_eq!(slots.oldest_idle(Some(2)), Some(0));
        slots.clear(2);
        assert_eq!((slots.n_idle_tokens(), slots.oldest_idle(Some(0))), (2, None));
    }
}
