use crate::world::cases::{Case, is, is_not, said, seen};
use crate::world::names::{AMOUNTS, ORDERS, PEOPLE};
use crate::world::scene::{Scene, phrase};
use crate::world::tools::Tool;

const REQUESTS: [&str; 6] = [
    "Please cancel order {order}.",
    "Cancel order {order}, please.",
    "I no longer need order {order}.",
    "Can you cancel {order} for me?",
    "Order {order} was a mistake, cancel it.",
    "Stop order {order} before it ships.",
];

pub(super) fn play(scene: &mut Scene) {
    let (order, user) = (scene.asked(&ORDERS), scene.other(&PEOPLE));
    let (amount, status) = (scene.draws.pick(&AMOUNTS), scene.draws.one_of("open", &["shipped"]));
    scene.add_user(user);
    scene.add_order(order, user, amount, status);
    let wrong = super::mistake(scene, &ORDERS);
    scene.open();

    let request = phrase(&mut scene.draws, &REQUESTS, &[("order", wrong.unwrap_or(order))]);
    scene.user(request);
    if let Some(wrong) = wrong {
        turn(scene, wrong);
        super::correct(scene, order);
    }
    turn(scene, order);
}

fn turn(scene: &mut Scene, order: &str) {
    let found = scene.call(Tool::GetOrder, &[order]);
    if found.is_error() {
        super::not_found(scene, order);
    } else if (found.text("status") == "open") != scene.slips() {
        if scene.call(Tool::CancelOrder, &[order]).is_error() {
            super::refused(scene, order);
        } else {
            scene.reply(format!("Order {order} is canceled."), &[order, "canceled"]);
        }
    } else {
        let opened = scene.call(Tool::OpenTicket, &[&found.text("user"), "return"]);
        let ticket = opened.text("ticket");
        scene.reply(format!("Order {order} is shipped, so I opened ticket {ticket}."), &[&ticket]);
    }

    let look = || Case::new().call(Tool::GetOrder, [said(order)]);
    let canceled = look().when(0, "status", is("open")).call(Tool::CancelOrder, [said(order)]);
    let is_gone = look().when(0, "status", is_not("open"));
    let returned = is_gone.call(Tool::OpenTicket, [seen(0, "user"), said("return")]);
    let cases = vec![canceled.says(order).says("canceled"), returned.tells(1, "ticket")];
    super::grade(scene, found.is_error(), cases);
}
