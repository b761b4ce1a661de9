//! Draws equal those of an independent implementation.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use envace_grpo::seeds::Draw;
use serde_json::Value;

#[test]
fn draws_are_the_golden_ones() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("golden/seeds.json")).unwrap();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let draw = draw_of(&case["coordinates"]);
        let hex: String = draw.seed().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, case["seed"].as_str().unwrap());
        for (i, index) in [0, 1, 1 << 40].into_iter().enumerate() {
            assert_eq!(draw.bits(index).to_string(), case["bits"][i].as_str().unwrap());
            let uniform: f64 = case["uniform"][i].as_str().unwrap().parse().unwrap();
            assert_eq!(draw.uniform(index), uniform);
            assert_eq!(draw.below(1000, index), case["below_1000"][i].as_u64().unwrap());
        }
        let mut items: Vec<u64> = (0..10).collect();
        draw.shuffle(&mut items);
        assert_eq!(serde_json::to_value(items).unwrap(), case["shuffled"]);
    }
}

fn draw_of(coordinates: &Value) -> Draw {
    let coordinates = coordinates.as_object().unwrap();
    let number = |name: &str| coordinates[name].as_u64().unwrap();
    let text = |name: &str| coordinates[name].as_str().unwrap();
    let mut draw = Draw::new(number("run_seed"), text("purpose"));
    // Set in reverse: the order of setting must not matter.
    for name in coordinates.keys().rev() {
        draw = match name.as_str() {
            "run_seed" | "purpose" => draw,
            "step" => draw.step(number(name)),
            "task_hash" => draw.task_hash(text(name)),
            "sample" => draw.sample(number(name)),
            "trial" => draw.trial(number(name)),
            "role" => draw.role(text(name)),
            "user_turn" => draw.user_turn(number(name)),
            "turn" => draw.turn(number(name)),
            "call" => draw.call(number(name)),
            "attempt" => draw.attempt(number(name)),
            "vote" => draw.vote(number(name)),
            "position" => draw.position(number(name)),
            other => unreachable!("no setter for {other}"),
        };
    }
    draw
}
