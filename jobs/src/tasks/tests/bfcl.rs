use envace_model::chat::Speaker;
use serde_json::{Value, json};

use super::*;
use crate::score::{CallOrder, GraderKind, Language, MadeCall, Matching};
use crate::tasks::bfcl::Companions;

fn expected(kind: &GraderKind) -> (CallOrder, Vec<(&str, Value)>) {
    let GraderKind::Calls { order, calls } = kind else { panic!("{kind:?}") };
    let arguments = |call: &crate::score::ExpectedCall| serde_json::to_value(&call.arguments).unwrap();
    (*order, calls.iter().map(|call| (call.name.as_str(), arguments(call))).collect())
}

#[test]
fn single_turn_prompts() {
    let report = import_fixture("bfcl/BFCL_v4_simple_python.json", Format::Bfcl);
    assert_eq!(
        refusals(&report),
        [
            "line 2 (`simple_python_1`): it has no possible answer",
            "line 3 (`simple_python_2`): its prompt holds a message of another speaker: assistant",
        ]
    );
    let garden = task(&report, "simple_python_0");
    let row = &garden.row;
    assert_eq!((row.split.as_str(), row.source.as_str()), ("simple_python", "bfcl:simple_python"));
    assert_eq!(row.family.as_deref(), Some("simple_python"));
    assert_eq!((row.transcript.as_ref(), row.world.as_ref()), (None, None));
    assert_eq!(
        garden.tools[0],
        json!({"type": "function", "function": {"name": "garden.area", "description": "Area of a garden.", "parameters": {
            "type": "object",
            "properties": {"width": {"type": "number", "description": "Width."},
                           "length": {"type": "number", "description": "Length."},
                           "unit": {"type": "string", "description": "Unit."}},
            "required": ["width", "length"]}}})
    );
    let [grader] = &garden.graders[..] else { panic!() };
    assert!(grader.is_required);
    let GraderKind::Bfcl(answer) = &grader.kind else { panic!("{grader:?}") };
    assert_eq!((answer.matching, answer.language), (Matching::Simple, Language::Python));
    let parameters = json!({"properties": {
        "width": {"type": "float"}, "length": {"type": "float"}, "unit": {"type": "string"}},
        "required": ["width", "length"]});
    assert_eq!(answer.functions, [json!({"name": "garden.area", "parameters": parameters})]);
    let call = |arguments: Value| {
        let arguments = arguments.as_object().unwrap().clone();
        answer.check(&[MadeCall { name: "garden.area".to_owned(), arguments }])
    };
    assert_eq!(call(json!({"width": 3, "length": 4.0})), Ok(()));
    assert_eq!(call(json!({"width": 3, "length": 4, "unit": "Meters"})), Ok(()));
    assert!(call(json!({"width": 3, "length": 4, "unit": "miles"})).is_err());

    let tulips = task(&report, "simple_python_3");
    assert_eq!(tulips.opening[0].role, Speaker::System);
    assert!(matches!(&tulips.graders[0].kind, GraderKind::Bfcl(answer) if answer.expected.len() == 1));
}

#[test]
fn categories_decide_the_grader() {
    let report = import_fixture("bfcl/BFCL_v4_parallel.json", Format::Bfcl);
    assert_eq!(
        refusals(&report),
        [
            "line 4 (`memory_0-customer-0`): agentic categories are not taken: memory",
            "line 5 (`nothing`): its id does not name a category: nothing",
        ]
    );
    let parallel = task(&report, "parallel_0");
    let GraderKind::Bfcl(answer) = &parallel.graders[0].kind else { panic!("{parallel:?}") };
    assert_eq!(answer.matching, Matching::Parallel);
    let plant = |flower: &str| {
        let arguments = json!({"flower": flower}).as_object().unwrap().clone();
        MadeCall { name: "plant".to_owned(), arguments }
    };
    assert_eq!(answer.check(&[plant("tulip"), plant("rose")]), Ok(()));
    assert!(answer.check(&[plant("rose"), plant("rose")]).is_err());
    let none = task(&report, "live_irrelevance_0-1-0");
    assert_eq!(none.row.split, "live_irrelevance");
    assert_eq!(none.graders[0].kind, GraderKind::Calls { order: CallOrder::Exact, calls: Vec::new() });
    assert_eq!(task(&report, "live_relevance_3-3-0").graders[0].kind, GraderKind::CallMade);
}

#[test]
fn multi_turn_prompts() {
    let report = import_fixture("bfcl/BFCL_v4_multi_turn_base.json", Format::Bfcl);
    assert_eq!(
        refusals(&report),
        [
            "line 2 (`multi_turn_base_1`): there is no documentation of class `MessageAPI`",
            "line 3 (`multi_turn_base_2`): user turn 0: `)` expected at character 16: mean(numbers=[1]",
            "line 4 (`multi_turn_base_3`): its possible answer has another number of user turns",
        ]
    );
    let task = task(&report, "multi_turn_base_0");
    // The user turn without a message, which offers the withheld function, is folded into the one before.
    assert_eq!(task.later_user_turns, ["And its root, to two digits?", "Thanks."]);
    assert_eq!(task.tools.len(), 2);
    assert!(!task.row.tools.contains("response"));
    let items: Vec<_> = task
        .graders
        .iter()
        .map(|spec| (spec.user_turn, spec.item.as_str(), spec.weight.to_string(), spec.is_required))
        .collect();
    let weight = |text: &str| text.to_owned();
    assert_eq!(
        items,
        [
            (0, "calls", weight("0.8"), true),
            (0, "calls_valid", weight("0.2"), false),
            (1, "calls", weight("0.8"), true),
            (1, "calls_valid", weight("0.2"), false),
            (2, "calls_valid", weight("1"), true),
        ]
    );
    let (order, calls) = expected(&task.graders[0].kind);
    assert_eq!((order, calls), (CallOrder::Subset, vec![("mean", json!({"numbers": {"is": [3, 5]}}))]));
    // A positional argument has its name; what equals its default may be left out.
    let arguments = json!({"number": {"is": 4}, "digits": {"optional": [2]}, "exact": {"optional": [false]}});
    assert_eq!(expected(&task.graders[2].kind).1, [("square_root", arguments)]);
}

#[test]
fn without_answers_calls_need_only_be_valid() {
    let prompts = fs_err::read(fixture("bfcl/BFCL_v4_multi_turn_base.json")).unwrap();
    let docs = Companions::beside(&fixture("bfcl/BFCL_v4_multi_turn_base.json")).unwrap().docs;
    let options =
        ImportOptions { bfcl: Companions { answers: None, docs: docs.clone() }, ..ImportOptions::default() };
    let report = import(&prompts, Format::Bfcl, &options).unwrap();
    assert_eq!(report.rows.len(), 3);
    for row in &report.rows {
        let kinds: Vec<_> =
            Task::parse(row.clone()).unwrap().graders.into_iter().map(|spec| spec.kind).collect();
        assert!(kinds.iter().all(|kind| *kind == GraderKind::CallsValid), "{}", row.task_id);
    }
    let broken = Companions { answers: Some(b"{}\n".to_vec()), docs };
    let options = ImportOptions { bfcl: broken, ..ImportOptions::default() };
    let error = import(&prompts, Format::Bfcl, &options).unwrap_err();
    assert_eq!(error.to_string(), "`possible_answer` is broken at line 1");
}
