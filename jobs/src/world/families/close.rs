use crate::score::{CallOrder, ValueTest};
use crate::world::cases::{Case, is, said};
use crate::world::names::{DEVICES, PEOPLE, TICKETS};
use crate::world::scene::{Scene, phrase};
use crate::world::tools::Tool;

const REQUESTS: [&str; 5] = [
    "Please close tickets {first} and {second}.",
    "Close {first} and {second}, please.",
    "Tickets {first} and {second} are done, close them.",
    "Can you close {first} and {second}?",
    "We are done with {first} and {second}.",
];

pub(super) fn play(scene: &mut Scene) {
    let (first, second) = (scene.asked(&TICKETS), scene.asked(&TICKETS));
    for ticket in [first, second] {
        let (user, device) = (scene.other(&PEOPLE), scene.other(&DEVICES));
        let priority = if scene.draws.chance(40) { "high" } else { "low" };
        scene.add_user(user);
        scene.add_device(device, user, "broken");
        scene.add_ticket(ticket, user, device, priority);
    }
    scene.open();

    let request = phrase(&mut scene.draws, &REQUESTS, &[("first", first), ("second", second)]);
    scene.user(request);
    let closed = scene.calls(&[(Tool::CloseTicket, &[first]), (Tool::CloseTicket, &[second])]);
    let tickets = [first, second];
    let mut urgent: Vec<[&str; 1]> = tickets
        .into_iter()
        .zip(&closed)
        .filter(|(_, response)| response.is_error())
        .map(|(id, _)| [id])
        .collect();
    let mut team = String::new();
    if scene.slips() {
        urgent.clear();
    }
    if !urgent.is_empty() {
        let calls: Vec<(Tool, &[&str])> =
            urgent.iter().map(|ticket| (Tool::EscalateTicket, ticket.as_slice())).collect();
        team = scene.calls(&calls).first().map(|response| response.text("team")).unwrap_or_default();
    }
    let outcome = |ticket: &str| {
        if urgent.iter().any(|urgent| urgent.contains(&ticket)) {
            format!("{ticket} went to team {team}")
        } else {
            format!("{ticket} is closed")
        }
    };
    let mut must_hold = vec![first, second];
    if !urgent.is_empty() {
        must_hold.push(&team);
    }
    if urgent.len() < 2 {
        must_hold.push("closed");
    }
    scene.reply(format!("{} and {}.", outcome(first), outcome(second)), &must_hold);

    let close = || {
        let close =
            Case::new().call(Tool::CloseTicket, [said(first)]).call(Tool::CloseTicket, [said(second)]);
        close.says(first).says(second)
    };
    let is_open = ValueTest::Exists(false);
    let escalate =
        |case: Case, ticket: &str| case.call(Tool::EscalateTicket, [said(ticket)]).tells(2, "team");
    let urgent = || is("high priority");
    scene.grade(
        CallOrder::AnyOrder,
        &[
            close().when(0, "error", is_open.clone()).when(1, "error", is_open.clone()).says("closed"),
            escalate(
                close().when(0, "error", urgent()).when(1, "error", is_open.clone()).says("closed"),
                first,
            ),
            escalate(close().when(0, "error", is_open).when(1, "error", urgent()).says("closed"), second),
            escalate(close().when(0, "error", urgent()).when(1, "error", urgent()), first)
                .call(Tool::EscalateTicket, [said(second)])
                .tells(3, "team"),
        ],
    );
}
