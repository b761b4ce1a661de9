use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::names::REFUND_LIMIT;
use super::state::{State, Ticket};

/// The tools of the service desk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    GetUser,
    GetOrder,
    CancelOrder,
    RefundOrder,
    GetDevice,
    ResetDevice,
    AssignDevice,
    GetTicket,
    OpenTicket,
    CloseTicket,
    EscalateTicket,
}

impl Tool {
    /// All of them, in the order in which they are declared to the policy.
    pub const ALL: [Self; 11] = [
        Self::GetUser,
        Self::GetOrder,
        Self::CancelOrder,
        Self::RefundOrder,
        Self::GetDevice,
        Self::ResetDevice,
        Self::AssignDevice,
        Self::GetTicket,
        Self::OpenTicket,
        Self::CloseTicket,
        Self::EscalateTicket,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::GetUser => "get_user",
            Self::GetOrder => "get_order",
            Self::CancelOrder => "cancel_order",
            Self::RefundOrder => "refund_order",
            Self::GetDevice => "get_device",
            Self::ResetDevice => "reset_device",
            Self::AssignDevice => "assign_device",
            Self::GetTicket => "get_ticket",
            Self::OpenTicket => "open_ticket",
            Self::CloseTicket => "close_ticket",
            Self::EscalateTicket => "escalate_ticket",
        }
    }

    /// What it does.
    pub fn description(self) -> &'static str {
        match self {
            Self::GetUser => "the team of a user",
            Self::GetOrder => "user, item, amount and status of an order",
            Self::CancelOrder => "cancel an open order",
            Self::RefundOrder => "refund an order, at most 50",
            Self::GetDevice => "owner and status of a device",
            Self::ResetDevice => "reset a device for its owner",
            Self::AssignDevice => "give a device to a user",
            Self::GetTicket => "user, device and priority of a ticket",
            Self::OpenTicket => "open a ticket for a user",
            Self::CloseTicket => "close a ticket of low priority",
            Self::EscalateTicket => "escalate a ticket to a team",
        }
    }

    /// Names of its arguments, all required texts.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::GetUser => &["user"],
            Self::GetOrder | Self::CancelOrder | Self::RefundOrder => &["order"],
            Self::GetDevice => &["device"],
            Self::ResetDevice | Self::AssignDevice => &["device", "user"],
            Self::GetTicket | Self::CloseTicket | Self::EscalateTicket => &["ticket"],
            Self::OpenTicket => &["user", "topic"],
        }
    }

    /// The key of its response that names what the response is about.
    pub fn subject(self) -> &'static str {
        match self {
            Self::GetUser => "user",
            Self::GetOrder | Self::CancelOrder | Self::RefundOrder => "order",
            Self::GetDevice | Self::ResetDevice | Self::AssignDevice => "device",
            Self::GetTicket | Self::OpenTicket | Self::CloseTicket | Self::EscalateTicket => "ticket",
        }
    }
}

/// Arguments of a call by their names; a missing one reads as an empty text, which names nothing.
#[derive(Debug, Default)]
pub(super) struct Arguments(pub BTreeMap<&'static str, String>);

impl Arguments {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

/// The response to a call that cannot be served.
pub(super) fn error(message: &str) -> Value {
    json!({ "error": message })
}

/// Serves a call: changes `state` if the rules allow it, and says what came of it.
pub(super) fn execute(state: &mut State, tool: Tool, arguments: &Arguments) -> Value {
    match tool {
        Tool::GetUser => {
            let user = arguments.get("user");
            match state.users.get(user) {
                None => error("unknown user"),
                Some(team) => json!({"user": user, "team": team}),
            }
        }
        Tool::GetOrder | Tool::CancelOrder | Tool::RefundOrder => order(state, tool, arguments.get("order")),
        Tool::GetDevice | Tool::ResetDevice | Tool::AssignDevice => {
            device(state, tool, arguments.get("device"), arguments.get("user"))
        }
        Tool::OpenTicket => open_ticket(state, arguments.get("user"), arguments.get("topic")),
        Tool::GetTicket | Tool::CloseTicket | Tool::EscalateTicket => {
            ticket(state, tool, arguments.get("ticket"))
        }
    }
}

fn order(state: &mut State, tool: Tool, id: &str) -> Value {
    let Some(order) = state.orders.get_mut(id) else { return error("unknown order") };
    match tool {
        Tool::CancelOrder if order.status != "open" => error("not open"),
        Tool::CancelOrder => {
            order.status = "canceled".to_owned();
            json!({"order": id, "status": order.status})
        }
        Tool::RefundOrder if order.status == "refunded" || order.status == "canceled" => {
            error("no refund left")
        }
        Tool::RefundOrder if order.amount > REFUND_LIMIT => error("over the limit"),
        Tool::RefundOrder => {
            order.status = "refunded".to_owned();
            json!({"order": id, "amount": order.amount, "status": order.status})
        }
        _ => json!({
            "order": id, "user": order.user, "item": order.item, "amount": order.amount, "status": order.status
        }),
    }
}

fn device(state: &mut State, tool: Tool, name: &str, user: &str) -> Value {
    let Some(device) = state.devices.get_mut(name) else { return error("unknown device") };
    match tool {
        Tool::ResetDevice if device.owner != user => error("not the owner"),
        Tool::ResetDevice => {
            device.status = "works".to_owned();
            json!({"device": name, "status": device.status})
        }
        Tool::AssignDevice if !state.users.contains_key(user) => error("unknown user"),
        Tool::AssignDevice => {
            device.owner = user.to_owned();
            json!({"device": name, "owner": device.owner})
        }
        _ => json!({"device": name, "owner": device.owner, "status": device.status}),
    }
}

fn open_ticket(state: &mut State, user: &str, topic: &str) -> Value {
    if !state.users.contains_key(user) {
        return error("unknown user");
    }
    if topic.is_empty() {
        return error("bad arguments");
    }
    if state.free_tickets.is_empty() {
        return error("no ticket left");
    }
    let id = state.free_tickets.remove(0);
    let ticket = Ticket {
        user: user.to_owned(),
        device: None,
        topic: Some(topic.to_owned()),
        priority: "low".to_owned(),
        status: "open".to_owned(),
        team: None,
    };
    state.tickets.insert(id.clone(), ticket);
    json!({"ticket": id, "status": "open"})
}

fn ticket(state: &mut State, tool: Tool, id: &str) -> Value {
    let Some(ticket) = state.tickets.get_mut(id) else { return error("unknown ticket") };
    match tool {
        Tool::CloseTicket | Tool::EscalateTicket if ticket.status == "closed" => error("not open"),
        Tool::CloseTicket if ticket.priority == "high" => error("high priority"),
        Tool::CloseTicket => {
            ticket.status = "closed".to_owned();
            json!({"ticket": id, "status": ticket.status})
        }
        Tool::EscalateTicket => {
            ticket.status = "escalated".to_owned();
            ticket.team = Some(state.team_on_duty.clone());
            json!({"ticket": id, "team": state.team_on_duty})
        }
        _ => {
            let mut response = json!({"ticket": id, "user": ticket.user});
            if let Some(device) = &ticket.device {
                response["device"] = json!(device);
            }
            response["priority"] = json!(ticket.priority);
            response["status"] = json!(ticket.status);
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::{Device, Order};
    use super::*;

    fn state() -> State {
        let order = |amount, status: &str| Order {
            user: "Alma".into(),
            item: "laptop".into(),
            amount,
            status: status.into(),
        };
        let ticket = |priority: &str| Ticket {
            user: "Alma".into(),
            device: Some("Falcon".into()),
            topic: None,
            priority: priority.into(),
            status: "open".into(),
            team: None,
        };
        State {
            users: [("Alma".into(), "sales".into()), ("Boris".into(), "legal".into())].into(),
            orders: [("O10".into(), order(50, "open")), ("O11".into(), order(55, "shipped"))].into(),
            devices: [("Falcon".into(), Device { owner: "Alma".into(), status: "broken".into() })].into(),
            tickets: [("T10".into(), ticket("low")), ("T11".into(), ticket("high"))].into(),
            free_tickets: vec!["T20".into()],
            team_on_duty: "network".into(),
        }
    }

    /// Calls in a row on one state, each with the response that the rules give it.
    #[test]
    fn each_rule_is_kept() {
        let mut state = state();
        type Case = (Tool, &'static [(&'static str, &'static str)], &'static str);
        let cases: [Case; 26] = [
            (Tool::GetUser, &[("user", "Alma")], r#"{"user":"Alma","team":"sales"}"#),
            (Tool::GetUser, &[("user", "Cara")], r#"{"error":"unknown user"}"#),
            (Tool::GetOrder, &[("order", "O99")], r#"{"error":"unknown order"}"#),
            (
                Tool::GetOrder,
                &[("order", "O10")],
                r#"{"order":"O10","user":"Alma","item":"laptop","amount":50,"status":"open"}"#,
            ),
            (Tool::CancelOrder, &[("order", "O11")], r#"{"error":"not open"}"#),
            (Tool::RefundOrder, &[("order", "O11")], r#"{"error":"over the limit"}"#),
            (Tool::RefundOrder, &[("order", "O10")], r#"{"order":"O10","amount":50,"status":"refunded"}"#),
            (Tool::RefundOrder, &[("order", "O10")], r#"{"error":"no refund left"}"#),
            (Tool::CancelOrder, &[("order", "O10")], r#"{"error":"not open"}"#),
            (Tool::GetDevice, &[("device", "Otter")], r#"{"error":"unknown device"}"#),
            (
                Tool::GetDevice,
                &[("device", "Falcon")],
                r#"{"device":"Falcon","owner":"Alma","status":"broken"}"#,
            ),
            (Tool::ResetDevice, &[("device", "Falcon"), ("user", "Boris")], r#"{"error":"not the owner"}"#),
            (
                Tool::ResetDevice,
                &[("device", "Falcon"), ("user", "Alma")],
                r#"{"device":"Falcon","status":"works"}"#,
            ),
            (Tool::AssignDevice, &[("device", "Falcon"), ("user", "Cara")], r#"{"error":"unknown user"}"#),
            (
                Tool::AssignDevice,
                &[("device", "Falcon"), ("user", "Boris")],
                r#"{"device":"Falcon","owner":"Boris"}"#,
            ),
            (Tool::OpenTicket, &[("user", "Cara"), ("topic", "delay")], r#"{"error":"unknown user"}"#),
            (Tool::OpenTicket, &[("user", "Alma"), ("topic", "")], r#"{"error":"bad arguments"}"#),
            (
                Tool::OpenTicket,
                &[("user", "Alma"), ("topic", "delay")],
                r#"{"ticket":"T20","status":"open"}"#,
            ),
            (Tool::OpenTicket, &[("user", "Alma"), ("topic", "delay")], r#"{"error":"no ticket left"}"#),
            (Tool::GetTicket, &[("ticket", "T99")], r#"{"error":"unknown ticket"}"#),
            (
                Tool::GetTicket,
                &[("ticket", "T11")],
                r#"{"ticket":"T11","user":"Alma","device":"Falcon","priority":"high","status":"open"}"#,
            ),
            (Tool::CloseTicket, &[("ticket", "T11")], r#"{"error":"high priority"}"#),
            (Tool::EscalateTicket, &[("ticket", "T11")], r#"{"ticket":"T11","team":"network"}"#),
            (Tool::CloseTicket, &[("ticket", "T10")], r#"{"ticket":"T10","status":"closed"}"#),
            (Tool::CloseTicket, &[("ticket", "T10")], r#"{"error":"not open"}"#),
            (Tool::EscalateTicket, &[("ticket", "T10")], r#"{"error":"not open"}"#),
        ];
        for (tool, arguments, expected) in cases {
            let named = tool
                .arguments()
                .iter()
                .filter_map(|name| Some((*name, arguments.iter().find(|(key, _)| key == name)?.1.to_owned())))
                .collect();
            let before = state.clone();
            let response = execute(&mut state, tool, &Arguments(named));
            assert_eq!(response.to_string(), expected, "{tool:?} {arguments:?}");
            if response.get("error").is_some() {
                assert_eq!(state, before, "an error must change nothing: {tool:?} {arguments:?}");
            }
        }
        assert_eq!(state.devices["Falcon"].owner, "Boris");
        assert_eq!(state.tickets["T20"].topic.as_deref(), Some("delay"));
        assert_eq!(state.tickets["T11"].team.as_deref(), Some("network"));
    }
}
