use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrow::array::{AsArray, RecordBatch};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Map, Value, json};

use super::*;

/// Checks one argument of a function that has only that one.
fn class_of(language: Language, declared: &Value, accepted: &Value, given: &Value) -> Option<&'static str> {
    let answer = BfclAnswer {
        functions: vec![
            json!({"name": "f", "parameters": {"properties": {"p": declared}, "required": ["p"]}}),
        ],
        expected: vec![json!({"f": {"p": accepted}}).as_object().unwrap().clone()],
        matching: Matching::Simple,
        language,
        dots_are_underscores: false,
    };
    let arguments = json!({"p": given}).as_object().unwrap().clone();
    answer.check(&[MadeCall { name: "f".to_owned(), arguments }]).err().map(|mismatch| mismatch.class)
}

/// From the text of the rules.
#[test]
fn edges_by_hand() {
    let plain = |name: &str| json!({"type": name});
    let list = |items: &str| json!({"type": "array", "items": {"type": items}});
    let simple = Some("type_error:simple");
    let others = Some("value_error:others");
    let text = Some("value_error:string");
    for (declared, accepted, given, class) in [
        // A whole number will do for a fraction, and nothing else for anything else.
        (plain("float"), json!([5.0]), json!(5), None),
        (plain("float"), json!([1.0]), json!(true), simple),
        (plain("integer"), json!([5]), json!(5.0), simple),
        (plain("boolean"), json!([true]), json!(1), simple),
        (plain("float"), json!([0.1]), json!(0.10000000000000002), others),
        // The kind of the first accepted value is a second chance, and then its spelling counts.
        (plain("string"), json!([null, "a"]), json!(null), None),
        (plain("string"), json!(["a", null]), json!(null), simple),
        (plain("string"), json!(["", null]), json!(null), None),
        (plain("string"), json!([null, "Abc"]), json!("abc"), others),
        (plain("string"), json!([null, "Abc"]), json!("Abc"), None),
        (plain("string"), json!(["New York, NY"]), json!("new york ny"), None),
        (plain("string"), json!(["a(b)"]), json!("ab"), text),
        (plain("string"), json!(["it's"]), json!("IT\"S"), None),
        (plain("string"), json!(["units", ""]), json!("-"), None),
        (plain("string"), json!([true]), json!("True"), others),
        (list("float"), json!([[1.0, 3.0]]), json!([1, 3]), Some("type_error:nested")),
        (list("float"), json!([[1, 3]]), json!([1.0, 3.0]), None),
        (list("integer"), json!([[1]]), json!([]), Some("value_error:list/tuple")),
        (list("integer"), json!(["", [1]]), json!([]), None),
        (list("string"), json!([["A b", "C"]]), json!(["ab", "c"]), None),
        (list("string"), json!([["A b", "C"]]), json!(["c", "ab"]), Some("value_error:list/tuple")),
        (list("float"), json!(["data['x']"]), json!("data['x']"), None),
        (list("array"), json!([[["A b"]]]), json!([["ab"]]), Some("value_error:list/tuple")),
        (plain("dict"), json!([{"a": [1], "b": ["x", ""]}]), json!({"a": true}), None),
        (plain("dict"), json!([{"a": [["X"]]}]), json!({"a": ["x"]}), Some("value_error:dict_value")),
        (plain("dict"), json!([{"a": [1, ""]}]), json!({}), None),
        (plain("dict"), json!([""]), json!({}), Some("dict_checker:unclear")),
        (list("dict"), json!([[{"a": [1]}, {"a": [2]}]]), json!([{"a": 1}, {"a": 2}]), None),
        (
            list("dict"),
            json!([[{"a": [1]}, {"a": [2]}]]),
            json!([{"a": 2}, {"a": 1}]),
            Some("value_error:dict_value"),
        ),
        (
            list("dict"),
            json!([[{"a": [1]}]]),
            json!([{"a": 1}, {"a": 1}]),
            Some("value_error:list_dict_count"),
        ),
        (plain("any"), json!(["x"]), json!("X"), None),
        (plain("any"), json!([3]), json!(3), None),
        (plain("unheard"), json!([3]), json!(3), Some("undefined")),
    ] {
        assert_eq!(
            class_of(Language::Python, &declared, &accepted, &given),
            class,
            "{declared} {accepted} {given}"
        );
    }
    let strings = json!({"type": "ArrayList", "items": {"type": "String"}});
    let array = json!({"type": "Array", "items": {"type": "String"}});
    for (language, declared, accepted, given, class) in [
        (Language::Java, plain("float"), json!([3.5]), json!("3.5"), simple),
        (Language::Java, plain("float"), json!([3.5]), json!("3.5f"), None),
        (Language::Java, plain("float"), json!([3.5]), json!(3.5), Some("type_error:java")),
        (Language::Java, plain("long"), json!([5]), json!("5"), simple),
        (Language::Java, plain("long"), json!([5]), json!("5L"), None),
        (
            Language::Java,
            strings,
            json!([["a", "b"]]),
            json!("new ArrayList<>(Arrays.asList(\"a\",\"b\"))"),
            None,
        ),
        (
            Language::Java,
            array,
            json!([["a", "b"]]),
            json!("new String[]{\"a\",\"b\"}"),
            Some("value_error:list/tuple"),
        ),
        (Language::JavaScript, plain("Bigint"), json!([5]), json!("5n"), None),
        (Language::JavaScript, plain("float"), json!([5.0]), json!("5"), None),
        (Language::JavaScript, plain("Boolean"), json!([true]), json!(true), Some("type_error:js")),
        (
            Language::JavaScript,
            plain("dict"),
            json!([{"a": [1], "b": [["x", "y"]]}]),
            json!("{a: 1, b: ['x', 'y']}"),
            None,
        ),
    ] {
        assert_eq!(class_of(language, &declared, &accepted, &given), class, "{declared} {accepted} {given}");
    }
}

fn rows(folder: &Path, name: &str) -> Vec<RecordBatch> {
    let file = std::fs::File::open(folder.join(name)).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    reader.map(Result::unwrap).collect()
}

fn texts<'b>(batch: &'b RecordBatch, column: &str) -> impl Iterator<Item = Option<&'b str>> {
    batch.column_by_name(column).unwrap().as_string::<i32>().iter()
}

/// Every verdict, and its class, is that of the leaderboard's own checker; `golden/bfcl_vectors.py` made the files.
#[test]
fn bfcl_vectors() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let folder = std::env::var_os("ENVACE_BFCL_VECTORS").map_or(own, PathBuf::from);
    let mut answers: BTreeMap<String, BfclAnswer> = BTreeMap::new();
    for batch in rows(&folder, "bfcl_entries.parquet") {
        let columns = ["id", "category", "language", "functions", "expected"].map(|name| texts(&batch, name));
        let [ids, categories, languages, functions, expected] = columns;
        for ((((id, category), language), functions), expected) in
            ids.zip(categories).zip(languages).zip(functions).zip(expected)
        {
            let answer = BfclAnswer {
                functions: serde_json::from_str(functions.unwrap()).unwrap(),
                expected: serde_json::from_str(expected.unwrap()).unwrap(),
                matching: Matching::of_category(category.unwrap()),
                language: serde_json::from_value(json!(language.unwrap())).unwrap(),
                dots_are_underscores: false,
            };
            answers.insert(id.unwrap().to_owned(), answer);
        }
    }
    let (mut n_vectors, mut n_passed, mut differences) = (0, 0, Vec::new());
    for batch in rows(&folder, "bfcl_vectors.parquet") {
        let [ids, calls, errors] = ["id", "calls", "error"].map(|name| texts(&batch, name));
        let flag = |name: &str| batch.column_by_name(name).unwrap().as_boolean().clone();
        let (has_dots, is_valid) = (flag("has_dots"), flag("is_valid"));
        for (row, ((id, calls), error)) in ids.zip(calls).zip(errors).enumerate() {
            let answer = &answers[id.unwrap()];
            let answer = BfclAnswer { dots_are_underscores: !has_dots.value(row), ..answer.clone() };
            let made: Vec<(String, Map<String, Value>)> = serde_json::from_str(calls.unwrap()).unwrap();
            let made: Vec<MadeCall> =
                made.into_iter().map(|(name, arguments)| MadeCall { name, arguments }).collect();
            let class = answer.check(&made).err().map(|mismatch| mismatch.class);
            n_vectors += 1;
            n_passed += usize::from(class.is_none());
            if class != error || class.is_none() != is_valid.value(row) {
                differences.push(format!("{id:?} {calls:?}: {class:?}, the leaderboard says {error:?}"));
            }
        }
    }
    println!("{n_vectors} vectors, {n_passed} passed, {} differences", differences.len());
    assert!(n_vectors >= 20_000 && n_passed > n_vectors / 5);
    assert!(differences.is_empty(), "{} differences, such as {}", differences.len(), differences[0]);
}
