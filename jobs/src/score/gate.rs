//! The gated prefix of a trajectory: what counts once a required item has failed.
//!
//! A rollout plays on whatever the graders will say. Everything downstream then reads only the user turns up to
//! and including the first one with a required item that did not pass: as if the next scripted user message had
//! never been sent. The queries say the same in SQL; this is the plain reference they are tested against.

use std::collections::BTreeMap;

use envace_schemas::tables::{GenerationRow, VerdictRow};

/// User turns of one trajectory that count, of the `n_user_turns` it began.
///
/// `verdicts` are those of the trajectory. A required item that is ungraded closes the gate like one that failed.
pub fn kept_user_turns(verdicts: &[VerdictRow], n_user_turns: usize) -> usize {
    let closed = verdicts.iter().filter(|verdict| verdict.is_required && verdict.is_passed != Some(true));
    let first = closed.filter_map(|verdict| usize::try_from(verdict.user_turn).ok()).min();
    first.map_or(n_user_turns, |user_turn| n_user_turns.min(user_turn.saturating_add(1)))
}

/// How many leading tokens of each sequence lie before the gate, by sequence index.
///
/// `generations` are those of one trajectory. A sequence is cut after the last sampled token of its last
/// generation in a kept user turn, to nothing if it has none; attention being causal, what stays is as if the
/// rest had never been sampled.
pub fn sequence_cuts(generations: &[GenerationRow], n_kept: usize) -> BTreeMap<i32, usize> {
    let mut cuts = BTreeMap::new();
    for generation in generations {
        let cut = cuts.entry(generation.sequence_index).or_insert(0);
        if is_kept(generation, n_kept) {
            let end = i64::from(generation.span_start) + i64::from(generation.n_tokens);
            *cut = usize::try_from(end).unwrap_or_default().max(*cut);
        }
    }
    cuts
}

/// Whether a generation lies before the gate.
pub fn is_kept(generation: &GenerationRow, n_kept: usize) -> bool {
    usize::try_from(generation.user_turn).is_ok_and(|user_turn| user_turn < n_kept)
}

#[cfg(test)]
mod tests {
    use envace_schemas::Decimal;

    use super::*;

    fn verdict(user_turn: i32, is_required: bool, is_passed: Option<bool>) -> VerdictRow {
        VerdictRow {
            task_id: "t".to_owned(),
            sample: 0,
            user_turn,
            grader: "calls".to_owned(),
            item: "calls".to_owned(),
            is_passed,
            reason: None,
            weight: Decimal::ONE,
            is_required,
            request_hash: None,
        }
    }

    #[test]
    fn the_first_required_item_that_did_not_pass_closes_the_gate() {
        let (yes, no) = (Some(true), Some(false));
        /// User turn, whether it is required, whether it passed.
        type Given = (i32, bool, Option<bool>);
        let cases: &[(&str, &[Given], usize)] = &[
            ("all passed", &[(0, true, yes), (1, true, yes), (2, true, yes)], 3),
            ("failed in the middle", &[(0, true, yes), (1, true, no), (2, true, yes)], 2),
            ("ungraded counts as failed", &[(0, true, None), (1, true, yes), (2, true, yes)], 1),
            ("not required", &[(0, false, no), (1, false, None), (2, true, yes)], 3),
            ("any order, two closed", &[(2, true, no), (0, true, yes), (1, true, no)], 2),
            ("one of two items", &[(0, true, yes), (0, true, no)], 1),
            ("in the last", &[(2, true, no)], 3),
            ("no verdicts", &[], 3),
            ("never begun", &[(3, true, no)], 3),
        ];
        for (name, verdicts, expected) in cases {
            let verdicts: Vec<_> =
                verdicts.iter().map(|&(turn, required, passed)| verdict(turn, required, passed)).collect();
            assert_eq!(kept_user_turns(&verdicts, 3), *expected, "{name}");
        }
    }

    #[test]
    fn sequences_end_with_their_last_kept_generation() {
        let generation = |sequence_index, user_turn, span_start, n_tokens| GenerationRow {
            task_id: "t".to_owned(),
            sample: 0,
            generation_index: 0,
            role: "actor".to_owned(),
            checkpoint: String::new(),
            user_turn,
            turn: 0,
            call_index: None,
            try_index: 0,
            sequence_index,
            span_start,
            n_tokens,
            n_prompt_tokens: span_start,
            text: String::new(),
            finish_reason: "stop".to_owned(),
            error_code: None,
            is_blank: false,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
        };
        // Sequence 0 holds user turns 0 and 1, sequence 1 a rehearsal in user turn 0, sequence 2 one in turn 1.
        let generations = [
            generation(0, 0, 20, 6),
            generation(1, 0, 30, 4),
            generation(0, 0, 10, 5),
            generation(0, 1, 40, 7),
            generation(2, 1, 8, 9),
        ];
        assert_eq!(sequence_cuts(&generations, 1), BTreeMap::from([(0, 26), (1, 34), (2, 0)]));
        assert_eq!(sequence_cuts(&generations, 2), BTreeMap::from([(0, 47), (1, 34), (2, 17)]));
        assert!(!is_kept(&generations[3], 1));
    }
}
