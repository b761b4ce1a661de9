use crate::world::cases::{Case, is, is_not, said, seen};
use crate::world::names::{DEVICES, PEOPLE, TICKETS};
use crate::world::scene::{Scene, phrase};
use crate::world::tools::Tool;

const REQUESTS: [&str; 6] = [
    "This is {user}. My ticket is {ticket}, please fix the device.",
    "I am {user}. Please fix the device of ticket {ticket}.",
    "{user} waits for a fix, the ticket is {ticket}.",
    "Can you fix ticket {ticket} for {user}?",
    "{user} asks about ticket {ticket}. Please fix the device.",
    "Ticket {ticket} is mine, I am {user}. Fix it, please.",
];

pub(super) fn play(scene: &mut Scene) {
    let (ticket, user) = (scene.asked(&TICKETS), scene.asked(&PEOPLE));
    let (device, other) = (scene.other(&DEVICES), scene.other(&PEOPLE));
    let priority = if scene.draws.chance(25) { "high" } else { "low" };
    let owner = if scene.draws.chance(40) { other } else { user };
    scene.add_user(user);
    scene.add_user(other);
    scene.add_device(device, owner, "broken");
    scene.add_ticket(ticket, user, device, priority);
    let wrong = super::mistake(scene, &TICKETS);
    scene.open();

    let request = phrase(&mut scene.draws, &REQUESTS, &[("ticket", wrong.unwrap_or(ticket)), ("user", user)]);
    scene.user(request);
    if let Some(wrong) = wrong {
        turn(scene, wrong, user);
        super::correct(scene, ticket);
    }
    turn(scene, ticket, user);
}

fn turn(scene: &mut Scene, ticket: &str, user: &str) {
    let found = scene.call(Tool::GetTicket, &[ticket]);
    if found.is_error() {
        super::not_found(scene, ticket);
    } else if (found.text("priority") == "high") != scene.slips() {
        let team = scene.call(Tool::EscalateTicket, &[ticket]).text("team");
        scene.reply(format!("Ticket {ticket} is urgent and went to team {team}."), &[&team]);
    } else {
        let device = found.text("device");
        let owner = scene.call(Tool::GetDevice, &[&device]).text("owner");
        if owner == user {
            let is_reset = !scene.call(Tool::ResetDevice, &[&device, user]).is_error();
            if is_reset && !scene.call(Tool::CloseTicket, &[ticket]).is_error() {
                scene.reply(
                    format!("{device} works again and ticket {ticket} is closed."),
                    &[&device, ticket, "closed"],
                );
            } else {
                super::refused(scene, ticket);
            }
        } else {
            let team = scene.call(Tool::EscalateTicket, &[ticket]).text("team");
            scene.reply(
                format!("{device} belongs to {owner}, so ticket {ticket} went to team {team}."),
                &[&owner, &team],
            );
        }
    }

    let look = || Case::new().call(Tool::GetTicket, [said(ticket)]);
    let urgent =
        look().when(0, "priority", is("high")).call(Tool::EscalateTicket, [said(ticket)]).tells(1, "team");
    let look_further = || look().when(0, "priority", is("low")).call(Tool::GetDevice, [seen(0, "device")]);
    let fixed = look_further()
        .when(1, "owner", is(user))
        .call(Tool::ResetDevice, [seen(0, "device"), said(user)])
        .call(Tool::CloseTicket, [said(ticket)])
        .tells(0, "device")
        .says(ticket)
        .says("closed");
    let of_other = look_further()
        .when(1, "owner", is_not(user))
        .call(Tool::EscalateTicket, [said(ticket)])
        .tells(1, "owner")
        .tells(2, "team");
    super::grade(scene, found.is_error(), vec![urgent, fixed, of_other]);
}
