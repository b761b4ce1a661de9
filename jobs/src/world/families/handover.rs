use crate::score::CallOrder;
use crate::world::cases::{Case, is, is_not, said};
use crate::world::names::{DEVICES, PEOPLE};
use crate::world::scene::{Scene, phrase};
use crate::world::tools::Tool;

const REQUESTS: [&str; 5] = [
    "Move device {device} from {from} to {to}.",
    "{from} gives device {device} to {to}.",
    "Please hand {device} over from {from} to {to}.",
    "{device} goes from {from} to {to}.",
    "Please give {device} of {from} to {to}.",
];

const QUESTIONS: [&str; 5] = [
    "Which team is {to} in?",
    "And in which team is {to}?",
    "What team does {to} work in?",
    "Tell me the team of {to}.",
    "Thanks. And the team of {to}?",
];

pub(super) fn play(scene: &mut Scene) {
    let (device, from, to) = (scene.asked(&DEVICES), scene.asked(&PEOPLE), scene.asked(&PEOPLE));
    let other = scene.other(&PEOPLE);
    let owner = if scene.draws.chance(40) { other } else { from };
    for user in [from, to, other] {
        scene.add_user(user);
    }
    let status = scene.draws.one_of("works", &["broken"]);
    scene.add_device(device, owner, status);
    let wrong = super::mistake(scene, &DEVICES);
    scene.open();

    let named = wrong.unwrap_or(device);
    let request = phrase(&mut scene.draws, &REQUESTS, &[("device", named), ("from", from), ("to", to)]);
    scene.user(request);
    if let Some(wrong) = wrong {
        turn(scene, wrong, from, to);
        super::correct(scene, device);
    }
    turn(scene, device, from, to);

    let question = phrase(&mut scene.draws, &QUESTIONS, &[("to", to)]);
    scene.user(question);
    let team = scene.call(Tool::GetUser, &[to]).text("team");
    scene.reply(format!("{to} is in team {team}."), &[&team]);
    let look = Case::new().call(Tool::GetUser, [said(to)]).tells(0, "team");
    scene.grade(CallOrder::Exact, &[look]);
}

fn turn(scene: &mut Scene, device: &str, from: &str, to: &str) {
    let found = scene.call(Tool::GetDevice, &[device]);
    let owner = found.text("owner");
    if found.is_error() {
        super::not_found(scene, device);
    } else if owner == from {
        scene.call(Tool::AssignDevice, &[device, to]);
        scene.reply(format!("{device} now belongs to {to}."), &[device, to]);
    } else {
        scene.reply(format!("Sorry, {device} belongs to {owner}."), &[&owner]);
    }

    let look = || Case::new().call(Tool::GetDevice, [said(device)]);
    let moved = look().when(0, "owner", is(from)).call(Tool::AssignDevice, [said(device), said(to)]);
    let refused = look().when(0, "owner", is_not(from)).tells(0, "owner");
    super::grade(scene, found.is_error(), vec![moved.says(device).says(to), refused]);
}
