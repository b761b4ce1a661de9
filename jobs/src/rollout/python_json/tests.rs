use super::*;

/// Input, and what `json.dumps(json.loads(input), ensure_ascii=False)` writes; Python 3.12.
#[test]
fn reads_and_writes_like_python() {
    for (input, expected) in [
        (r#"{"a":1,"b":[true,null]}"#, r#"{"a": 1, "b": [true, null]}"#),
        ("NaN", "NaN"),
        ("[-Infinity, Infinity]", "[-Infinity, Infinity]"),
        (r#"{"a":1,"b":2,"a":3}"#, r#"{"a": 3, "b": 2}"#),
        ("12345678901234567890123", "12345678901234567890123"),
        ("1.0", "1.0"),
        ("1e16", "1e+16"),
        ("123456789012345.6", "123456789012345.6"),
        ("0.0001", "0.0001"),
        ("0.00001", "1e-05"),
        ("1.5E-7", "1.5e-07"),
        ("1e400", "Infinity"),
        ("-0", "0"),
        ("-0.0", "-0.0"),
        (r#""caf\u00e9 \ud83d\ude00 \u007f\/""#, "\"café 😀 \u{7f}/\""),
        ("{}", "{}"),
        (" [ ] ", "[]"),
    ] {
        let value = PyValue::parse(input).unwrap();
        assert_eq!(value.dumps(Dumps::PLAIN), expected, "{input}");
    }
}

#[test]
fn refuses_what_python_refuses() {
    for input in
        ["", "{", "[1,]", "{a:1}", "01", "1.", ".5", "+1", "'a'", "\"a", "\"\n\"", "\"\\x\"", "1 2", "nan"]
    {
        assert!(PyValue::parse(input).is_err(), "{input}");
    }
    assert!(PyValue::parse(&"[".repeat(100_000)).is_err());
}

#[test]
fn other_styles() {
    let value = PyValue::parse(r#"{"b":"é😀","a":[1,{}]}"#).unwrap();
    assert_eq!(value.dumps(Dumps::ASCII), r#"{"b": "\u00e9\ud83d\ude00", "a": [1, {}]}"#);
    assert_eq!(value.dumps(Dumps::CANONICAL), r#"{"a":[1,{}],"b":"\u00e9\ud83d\ude00"}"#);
    assert_eq!(value.dumps(Dumps::LINES), "{\n\"b\": \"\\u00e9\\ud83d\\ude00\",\n\"a\": [\n1,\n{}\n]\n}");
    assert_eq!(canonical("{\"y\" :1, \"x\":\n2}"), canonical(r#"{"x":2,"y":1}"#));
    assert_ne!(canonical("1"), canonical("1.0"));
    assert_eq!(canonical("{"), None);
}

/// A lone surrogate becomes U+FFFD, and what follows is kept.
#[test]
fn lone_surrogates_are_replaced() {
    for (input, expected) in
        [(r#""\ud800x""#, "\u{fffd}x"), (r#""\ud800\u0041""#, "\u{fffd}A"), (r#""\udc00""#, "\u{fffd}")]
    {
        assert_eq!(PyValue::parse(input), Ok(PyValue::Text(expected.to_owned())), "{input}");
    }
}

proptest::proptest! {
    #[test]
    fn never_panics(input in r#"[\[\]{}",:\\u0-9a-fNIn.eE+ -]{0,40}"#) {
        if let Ok(value) = PyValue::parse(&input) {
            let written = value.dumps(Dumps::ASCII);
            let again = PyValue::parse(&written).unwrap();
            proptest::prop_assert_eq!(again.dumps(Dumps::ASCII), written);
        }
    }
}
