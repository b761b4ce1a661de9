//! Matches the calls made in a user turn with the expected ones.

use super::Outcome;
use super::expected::{Ledger, Slot};
use super::seen::SeenCall;
use crate::score::{Argument, CallOrder, ExpectedCall};

/// Assignments of the calls that others refer to, tried before giving up.
const MAX_ASSIGNMENTS: usize = 1_000;

/// Grades the calls made in `user_turn` against `expected`.
pub(super) fn match_calls(
    ledger: &Ledger<'_>,
    user_turn: usize,
    expected: &[ExpectedCall],
    order: CallOrder,
) -> Outcome {
    let made = ledger.made(user_turn);
    if order == CallOrder::Exact {
        return in_order(ledger, user_turn, expected, made);
    }
    let strict = Search::run(ledger, user_turn, expected, false);
    if strict.is_full() {
        return match strict.first_unused() {
            Some(index) if order == CallOrder::AnyOrder => not_expected(made, index),
            _ => Outcome::passed(),
        };
    }
    // What rests on an unusable response may count as made: then nothing that can be known is wrong.
    let lenient = Search::run(ledger, user_turn, expected, true);
    if lenient.is_full() {
        let reason = lenient.best.iter().find_map(|slot| match slot {
            Slot::Unknown(reason) => Some(reason.clone()),
            _ => None,
        });
        return Outcome::ungraded(
            reason.unwrap_or_else(|| "the calls can be matched in too many ways".to_owned()),
        );
    }
    if strict.gave_up && strict.is_possible() {
        return Outcome::ungraded("the calls can be matched in too many ways");
    }
    strict.why_not_full()
}

fn in_order(ledger: &Ledger<'_>, user_turn: usize, expected: &[ExpectedCall], made: &[SeenCall]) -> Outcome {
    let mut slots = Vec::new();
    for (index, call) in expected.iter().enumerate() {
        if let Some(reason) = ledger.unknown(user_turn, call, &slots) {
            return Outcome::ungraded(reason);
        }
        let Some(found) = made.get(index) else { return not_made(call) };
        if let Err(reason) = ledger.fits(user_turn, call, found, &slots) {
            return Outcome::failed(format!("call {index}: {reason}"));
        }
        slots.push(Slot::Made(index));
    }
    if made.len() > expected.len() { not_expected(made, expected.len()) } else { Outcome::passed() }
}

fn not_made(call: &ExpectedCall) -> Outcome {
    Outcome::failed(format!("call of `{}` was not made", call.name))
}

fn not_expected(made: &[SeenCall], index: usize) -> Outcome {
    let name = made.get(index).map_or("?", |call| call.name.as_str());
    Outcome::failed(format!("call {index}: `{name}` is not expected"))
}

/// The assignment of calls made to expected ones that fills most slots.
///
/// The calls that others refer to are tried one way after the other, because what the others must be depends
/// on them; given those, the rest is bipartite matching.
struct Search<'l, 'a> {
    ledger: &'l Ledger<'a>,
    user_turn: usize,
    expected: &'l [ExpectedCall],
    made: &'l [SeenCall],
    /// Expected calls that others refer to, ascending.
    referenced: Vec<usize>,
    lenient: bool,
    n_tried: usize,
    gave_up: bool,
    best: Vec<Slot>,
}

impl<'l, 'a> Search<'l, 'a> {
    fn run(ledger: &'l Ledger<'a>, user_turn: usize, expected: &'l [ExpectedCall], lenient: bool) -> Self {
        let is_referenced = |index: &usize| {
            expected.iter().flat_map(|call| call.arguments.values()).any(|argument| {
                matches!(argument, Argument::From { call, user_turn: other, .. }
                    if call == index && other.is_none_or(|other| other == user_turn))
            })
        };
        let mut search = Self {
            ledger,
            user_turn,
            expected,
            made: ledger.made(user_turn),
            referenced: (0..expected.len()).filter(is_referenced).collect(),
            lenient,
            n_tried: 0,
            gave_up: false,
            best: vec![Slot::Open; expected.len()],
        };
        search.assign(0, &mut vec![Slot::Open; expected.len()]);
        search
    }

    fn is_full(&self) -> bool {
        n_filled(&self.best) == self.expected.len()
    }

    /// Whether enough calls were made that have the right names and constants.
    fn is_possible(&self) -> bool {
        let edges: Vec<(usize, Vec<usize>)> = self
            .expected
            .iter()
            .enumerate()
            .map(|(index, call)| {
                let places = self.made.iter().enumerate();
                let places = places.filter(|(_, made)| self.ledger.could_fit(self.user_turn, call, made));
                (index, places.map(|(place, _)| place).collect())
            })
            .collect();
        maximum_matching(&edges, self.made.len()).len() == self.expected.len()
    }

    fn is_done(&self) -> bool {
        self.gave_up || (self.n_tried > 0 && self.is_full())
    }

    /// Tries every assignment of the referenced calls from `depth` on.
    fn assign(&mut self, depth: usize, slots: &mut Vec<Slot>) {
        let Some(index) = self.referenced.get(depth).copied() else { return self.fill_rest(slots) };
        let Some(call) = self.expected.get(index) else { return };
        let mut choices = Vec::new();
        if let Some(reason) = self.ledger.unknown(self.user_turn, call, slots).filter(|_| self.lenient) {
            choices.push(Slot::Unknown(reason));
        } else {
            for (place, made) in self.made.iter().enumerate() {
                let twin = |other: &Slot| {
                    matches!(other, Slot::Made(other)
                    if self.made.get(*other).is_some_and(|other| is_twin(other, made)))
                };
                let is_free = !slots.contains(&Slot::Made(place)) && !choices.iter().any(twin);
                if is_free && self.ledger.fits(self.user_turn, call, made, slots).is_ok() {
                    choices.push(Slot::Made(place));
                }
            }
            choices.push(Slot::Open);
        }
        for choice in choices {
            if self.is_done() {
                return;
            }
            set(slots, index, choice);
            self.assign(depth + 1, slots);
        }
        set(slots, index, Slot::Open);
    }

    /// Gives the expected calls that nothing refers to as many of the free calls as can be.
    fn fill_rest(&mut self, slots: &[Slot]) {
        self.n_tried += 1;
        if self.n_tried > MAX_ASSIGNMENTS {
            self.gave_up = true;
            return;
        }
        let mut slots = slots.to_vec();
        let mut edges: Vec<(usize, Vec<usize>)> = Vec::new();
        for (index, call) in self.expected.iter().enumerate() {
            if self.referenced.contains(&index) {
                continue;
            }
            if let Some(reason) = self.ledger.unknown(self.user_turn, call, &slots).filter(|_| self.lenient) {
                set(&mut slots, index, Slot::Unknown(reason));
                continue;
            }
            let places = self.made.iter().enumerate().filter(|(place, made)| {
                !slots.contains(&Slot::Made(*place))
                    && self.ledger.fits(self.user_turn, call, made, &slots).is_ok()
            });
            edges.push((index, places.map(|(place, _)| place).collect()));
        }
        for (index, place) in maximum_matching(&edges, self.made.len()) {
            set(&mut slots, index, Slot::Made(place));
        }
        if self.n_tried == 1 || n_filled(&slots) > n_filled(&self.best) {
            self.best = slots;
        }
    }

    fn first_unused(&self) -> Option<usize> {
        (0..self.made.len()).find(|place| !self.best.contains(&Slot::Made(*place)))
    }

    /// The first expected call that is missing, and what stands in its place.
    fn why_not_full(&self) -> Outcome {
        let open = self.best.iter().zip(self.expected).find(|(slot, _)| **slot == Slot::Open);
        let Some((_, call)) = open else { return Outcome::passed() };
        let mut others = self
            .made
            .iter()
            .enumerate()
            .filter(|(place, made)| made.name == call.name && !self.best.contains(&Slot::Made(*place)));
        match others.next() {
            None => not_made(call),
            Some((place, made)) => {
                let reason = self.ledger.fits(self.user_turn, call, made, &self.best).err();
                let reason = reason.unwrap_or_else(|| "fits only in place of another".to_owned());
                Outcome::failed(format!("call {place}: {reason}"))
            }
        }
    }
}

fn n_filled(slots: &[Slot]) -> usize {
    slots.iter().filter(|slot| **slot != Slot::Open).count()
}

fn set(slots: &mut [Slot], index: usize, value: Slot) {
    if let Some(slot) = slots.get_mut(index) {
        *slot = value;
    }
}

/// Whether one call can stand for the other wherever it is referred to.
fn is_twin(one: &SeenCall, other: &SeenCall) -> bool {
    one.name == other.name && one.arguments == other.arguments && one.response == other.response
}

/// Pairs as many left nodes with right nodes as possible, each with one of its own; augmenting paths.
fn maximum_matching(edges: &[(usize, Vec<usize>)], n_right: usize) -> Vec<(usize, usize)> {
    fn augment(
        left: usize,
        edges: &[(usize, Vec<usize>)],
        seen: &mut [bool],
        owner: &mut [Option<usize>],
    ) -> bool {
        let Some((_, rights)) = edges.get(left) else { return false };
        for &right in rights {
            if seen.get(right).copied().unwrap_or(true) {
                continue;
            }
            if let Some(mark) = seen.get_mut(right) {
                *mark = true;
            }
            let taken = owner.get(right).copied().flatten();
            if taken.is_none_or(|other| augment(other, edges, seen, owner)) {
                if let Some(slot) = owner.get_mut(right) {
                    *slot = Some(left);
                }
                return true;
            }
        }
        false
    }
    let mut owner = vec![None; n_right];
    for left in 0..edges.len() {
        augment(left, edges, &mut vec![false; n_right], &mut owner);
    }
    let pairs = owner.iter().enumerate().filter_map(|(right, left)| Some((edges.get((*left)?)?.0, right)));
    pairs.collect()
}
