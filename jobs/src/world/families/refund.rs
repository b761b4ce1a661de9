use crate::score::ValueTest;
use crate::world::cases::{Case, is, is_not, said};
use crate::world::names::{AMOUNTS, ORDERS, PEOPLE, REFUND_LIMIT};
use crate::world::scene::{Scene, phrase};
use crate::world::tools::Tool;

const REQUESTS: [&str; 6] = [
    "{user} wants a refund for order {order}.",
    "This is {user}. Please refund order {order}.",
    "I am {user} and I want my money back for {order}.",
    "Refund {order} to {user}, please.",
    "Can {user} get a refund for order {order}?",
    "{user} is not happy with {order} and asks for a refund.",
];

pub(super) fn play(scene: &mut Scene) {
    let (order, user, other) = (scene.asked(&ORDERS), scene.asked(&PEOPLE), scene.other(&PEOPLE));
    let is_over = scene.draws.chance(50);
    let amounts: Vec<u32> =
        AMOUNTS.into_iter().filter(|amount| (*amount > REFUND_LIMIT) == is_over).collect();
    let amount = scene.draws.pick(&amounts);
    let buyer = if scene.draws.chance(30) { other } else { user };
    scene.add_user(user);
    scene.add_user(other);
    scene.add_order(order, buyer, amount, "delivered");
    let wrong = super::mistake(scene, &ORDERS);
    scene.open();

    let request = phrase(&mut scene.draws, &REQUESTS, &[("order", wrong.unwrap_or(order)), ("user", user)]);
    scene.user(request);
    if let Some(wrong) = wrong {
        turn(scene, wrong, user);
        super::correct(scene, order);
    }
    turn(scene, order, user);
}

fn turn(scene: &mut Scene, order: &str, user: &str) {
    let found = scene.call(Tool::GetOrder, &[order]);
    let (buyer, amount) = (found.text("user"), found.text("amount"));
    if found.is_error() {
        super::not_found(scene, order);
    } else if buyer != user {
        scene.reply(format!("Sorry, order {order} belongs to {buyer}."), &[&buyer]);
    } else if amount.parse::<u32>().is_ok_and(|amount| amount <= REFUND_LIMIT) != scene.slips() {
        if scene.call(Tool::RefundOrder, &[order]).is_error() {
            super::refused(scene, order);
        } else {
            scene.reply(format!("I refunded {amount} for order {order}."), &[&amount, "refunded"]);
        }
    } else {
        let ticket = scene.call(Tool::OpenTicket, &[user, "refund"]).text("ticket");
        scene.reply(format!("{amount} is over the limit, so I opened ticket {ticket}."), &[&ticket]);
    }

    let look = || Case::new().call(Tool::GetOrder, [said(order)]);
    let of_other = look().when(0, "user", is_not(user)).tells(0, "user");
    let of_user = || look().when(0, "user", is(user));
    let refunded = of_user()
        .when(0, "amount", ValueTest::AtMost(f64::from(REFUND_LIMIT)))
        .call(Tool::RefundOrder, [said(order)])
        .says("refunded")
        .tells(0, "amount");
    let over = of_user()
        .when(0, "amount", ValueTest::Above(f64::from(REFUND_LIMIT)))
        .call(Tool::OpenTicket, [said(user), said("refund")])
        .tells(1, "ticket");
    super::grade(scene, found.is_error(), vec![of_other, refunded, over]);
}
