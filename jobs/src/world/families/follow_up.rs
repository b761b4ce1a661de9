use crate::score::CallOrder;
use crate::world::cases::{Case, Expected, said};
use crate::world::names::{AMOUNTS, ORDERS, PEOPLE, TOPICS};
use crate::world::scene::{Scene, phrase};
use crate::world::tools::Tool;

const QUESTIONS: [&str; 6] = [
    "Where is order {order}?",
    "What is the status of {order}?",
    "Tell me about order {order}.",
    "Is order {order} on its way?",
    "How far is {order}?",
    "Is {order} shipped?",
];

const REQUESTS: [&str; 5] = [
    "Open a ticket for the buyer about {topic}.",
    "For the buyer, open a ticket about {topic}.",
    "Please open a ticket for that user, about {topic}.",
    "The buyer needs a ticket about {topic}.",
    "Then make a ticket for the user, about {topic}.",
];

const ESCALATIONS: [&str; 5] = [
    "Now escalate it.",
    "That is urgent, escalate the ticket.",
    "Please escalate that ticket.",
    "Send it to the team, please.",
    "It can not wait, escalate it.",
];

pub(super) fn play(scene: &mut Scene) {
    let (order, user) = (scene.asked(&ORDERS), scene.other(&PEOPLE));
    let (amount, topic) = (scene.draws.pick(&AMOUNTS), scene.draws.pick(&TOPICS));
    let status = scene.draws.one_of("open", &["shipped", "delivered"]);
    scene.add_user(user);
    scene.add_order(order, user, amount, status);
    scene.open();

    let question = phrase(&mut scene.draws, &QUESTIONS, &[("order", order)]);
    scene.user(question);
    let found = scene.call(Tool::GetOrder, &[order]);
    let status = found.text("status");
    scene.reply(format!("Order {order} is {status}."), &[order, &status]);
    let look = Case::new().call(Tool::GetOrder, [said(order)]).says(order).tells(0, "status");
    scene.grade(CallOrder::Exact, &[look]);

    let request = phrase(&mut scene.draws, &REQUESTS, &[("topic", topic)]);
    scene.user(request);
    // An operator who slips takes the order for delayed, whatever the ticket is to be about.
    let written = if scene.slips() { "delay" } else { topic };
    let buyer = found.text("user");
    let ticket = scene.call(Tool::OpenTicket, &[&buyer, written]).text("ticket");
    scene.reply(format!("I opened ticket {ticket} for {buyer}."), &[&ticket]);
    let buyer = Expected::SeenBefore { user_turn: 0, call: 0, tool: Tool::GetOrder, key: "user" };
    let open = Case::new().call(Tool::OpenTicket, [buyer, said(topic)]).tells(0, "ticket");
    scene.grade(CallOrder::Exact, &[open]);

    let escalation = phrase(&mut scene.draws, &ESCALATIONS, &[]);
    scene.user(escalation);
    if scene.slips() {
        scene.call(Tool::CloseTicket, &[&ticket]);
        scene.reply(format!("Ticket {ticket} is closed."), &[]);
    } else {
        let team = scene.call(Tool::EscalateTicket, &[&ticket]).text("team");
        scene.reply(format!("Ticket {ticket} went to team {team}."), &[&team]);
    }
    let ticket = Expected::SeenBefore { user_turn: 1, call: 0, tool: Tool::OpenTicket, key: "ticket" };
    let escalate = Case::new().call(Tool::EscalateTicket, [ticket]).tells(0, "team");
    scene.grade(CallOrder::Exact, &[escalate]);
}
