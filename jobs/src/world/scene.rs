use std::collections::BTreeMap;

use envace_model::chat::{ChatMessage, Speaker, ToolCall};
use envace_schemas::Decimal;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::cases::Case;
use super::draws::Draws;
use super::families::Family;
use super::names::{AMOUNTS, DEVICES, ITEMS, ORDERS, PEOPLE, TEAMS, TICKETS};
use super::state::{Device, Order, State, Ticket};
use super::tools::Tool;
use super::{Api, Split};
use crate::score::{CallOrder, GraderKind, GraderSpec};
use crate::task::RecordedCall;

/// One out of this many names is kept out of the user messages of a family in training.
const RESERVED_ONE_IN: usize = Family::ALL.len();

/// Who plays the policy in a recorded dialogue.
#[derive(Debug)]
pub(super) enum Operator {
    /// Never breaks a rule.
    Careful,
    /// Breaks the rule at hand in `percent` of 100 decisions.
    Careless { draws: Draws, percent: u8 },
}

/// A task in the making: what the world holds, what is said, and what is really done.
///
/// First the state is filled; [`Scene::open`] freezes it as the initial one. Then the dialogue is played: each
/// call is executed at once, so that what follows can depend on the response.
pub(super) struct Scene {
    pub draws: Draws,
    split: Split,
    family: Family,
    operator: Operator,
    api: Api,
    used: Vec<&'static str>,
    pub state: State,
    pub initial: State,
    pub messages: Vec<ChatMessage>,
    pub later_user_turns: Vec<String>,
    pub recorded_calls: Vec<RecordedCall>,
    pub graders: Vec<GraderSpec>,
    pub replies: Vec<Vec<String>>,
    n_turns: usize,
    n_user_turns: usize,
}

impl Scene {
    pub fn new(draws: Draws, split: Split, family: Family, operator: Operator) -> Self {
        let mut scene = Self {
            draws,
            split,
            family,
            operator,
            api: Api::of(split),
            used: Vec::new(),
            state: State::default(),
            initial: State::default(),
            messages: Vec::new(),
            later_user_turns: Vec::new(),
            recorded_calls: Vec::new(),
            graders: Vec::new(),
            replies: Vec::new(),
            n_turns: 0,
            n_user_turns: 0,
        };
        scene.state.team_on_duty = scene.draws.pick(&TEAMS).to_owned();
        scene
    }

    /// A new name out of `list` for a user message: one that the split keeps from this family, or, for the first one
    /// that is drawn, for it.
    pub fn asked(&mut self, list: &[&'static str]) -> &'static str {
        let (split, family, is_first) = (self.split, self.family, self.used.is_empty());
        self.draw(list, |index| match split {
            Split::Train => !is_reserved(family, index),
            Split::HeldOut => is_reserved(family, index) || !is_first,
            Split::Drift => true,
        })
    }

    /// A new name out of `list` for anything else.
    pub fn other(&mut self, list: &[&'static str]) -> &'static str {
        self.draw(list, |_| true)
    }

    fn draw(&mut self, list: &[&'static str], accept: impl Fn(usize) -> bool) -> &'static str {
        let choices: Vec<&'static str> = list
            .iter()
            .enumerate()
            .filter(|(index, name)| accept(*index) && !self.used.contains(*name))
            .map(|(_, name)| *name)
            .collect();
        let name = self.draws.pick(&choices);
        self.used.push(name);
        name
    }

    /// Makes `name` a known person.
    pub fn add_user(&mut self, name: &str) {
        let team = self.draws.pick(&TEAMS);
        self.state.users.insert(name.to_owned(), team.to_owned());
    }

    /// Stores an order.
    pub fn add_order(&mut self, id: &str, user: &str, amount: u32, status: &str) {
        let item = self.draws.pick(&ITEMS).to_owned();
        let order = Order { user: user.to_owned(), item, amount, status: status.to_owned() };
        self.state.orders.insert(id.to_owned(), order);
    }

    /// Stores a device.
    pub fn add_device(&mut self, name: &str, owner: &str, status: &str) {
        let device = Device { owner: owner.to_owned(), status: status.to_owned() };
        self.state.devices.insert(name.to_owned(), device);
    }

    /// Stores an open ticket about a device.
    pub fn add_ticket(&mut self, id: &str, user: &str, device: &str, priority: &str) {
        let ticket = Ticket {
            user: user.to_owned(),
            device: Some(device.to_owned()),
            topic: None,
            priority: priority.to_owned(),
            status: "open".to_owned(),
            team: None,
        };
        self.state.tickets.insert(id.to_owned(), ticket);
    }

    /// Adds bystanders, which a wrong call would find, and freezes the state as the initial one.
    pub fn open(&mut self) {
        for _ in 0..2 {
            let (user, order, device, ticket) =
                (self.other(&PEOPLE), self.other(&ORDERS), self.other(&DEVICES), self.other(&TICKETS));
            let (amount, status) = (self.draws.pick(&AMOUNTS), self.draws.one_of("open", &["shipped"]));
            self.add_user(user);
            self.add_order(order, user, amount, status);
            self.add_device(device, user, "broken");
            self.add_ticket(ticket, user, device, "low");
        }
        for _ in 0..3 {
            let id = self.other(&TICKETS);
            self.state.free_tickets.push(id.to_owned());
        }
        self.initial = self.state.clone();
    }

    /// The user says something.
    pub fn user(&mut self, text: String) {
        if self.messages.is_empty() {
            self.messages.push(ChatMessage::text(Speaker::System, super::RULES));
        } else {
            self.later_user_turns.push(text.clone());
        }
        self.messages.push(ChatMessage::text(Speaker::User, text));
        self.n_user_turns += 1;
    }

    /// The policy makes one call; returns the fields of the response.
    pub fn call(&mut self, tool: Tool, arguments: &[&str]) -> Response {
        self.calls(&[(tool, arguments)]).pop().unwrap_or_default()
    }

    /// The policy makes calls in one turn; arguments in the order in which the tool declares them.
    pub fn calls(&mut self, calls: &[(Tool, &[&str])]) -> Vec<Response> {
        let mut message = ChatMessage::text(Speaker::Assistant, "");
        let (mut answers, mut responses) = (Vec::new(), Vec::new());
        for (index, (tool, values)) in calls.iter().enumerate() {
            let name = self.api.tool_name(*tool);
            let arguments: Map<String, Value> = tool
                .arguments()
                .iter()
                .zip(*values)
                .map(|(name, value)| (self.api.argument_name(*tool, name).to_owned(), json!(value)))
                .collect();
            let arguments = super::api::json_text(&Value::Object(arguments));
            let result = self.api.execute(&mut self.state, name, &arguments);
            let id = format!("call_{}_{index}", self.n_turns);
            message.tool_calls.push(ToolCall {
                id: id.clone(),
                name: name.to_owned(),
                arguments: arguments.clone(),
            });
            let mut answer = ChatMessage::text(Speaker::Tool, result.clone());
            (answer.tool_call_id, answer.name) = (Some(id), Some(name.to_owned()));
            answers.push(answer);
            responses.push(Response { api: self.api, tool: *tool, body: result.parse().unwrap_or_default() });
            // JSON text that was just made always parses.
            if let Ok(arguments) = RawValue::from_string(arguments) {
                let user_turn = self.n_user_turns - 1;
                self.recorded_calls.push(RecordedCall {
                    user_turn,
                    name: name.to_owned(),
                    arguments,
                    result,
                });
            }
        }
        self.messages.push(message);
        self.messages.extend(answers);
        self.n_turns += 1;
        responses
    }

    /// The policy answers the user; `must_hold` is what the reply of any policy has to say.
    pub fn reply(&mut self, text: String, must_hold: &[&str]) {
        self.messages.push(ChatMessage::text(Speaker::Assistant, text));
        self.replies.push(must_hold.iter().map(|text| (*text).to_owned()).collect());
        self.n_turns += 1;
    }

    /// Whether the operator breaks the rule at hand. Asked where a rule turns on one word of a response, such as a
    /// status; never where two names are compared, which a small model learns from sound examples only.
    pub fn slips(&mut self) -> bool {
        match &mut self.operator {
            Operator::Careful => false,
            Operator::Careless { draws, percent } => draws.chance(usize::from(*percent)),
        }
    }

    /// Declares how the user turn that was just played is graded, for any responses, real or imagined.
    pub fn grade(&mut self, order: CallOrder, cases: &[Case]) {
        let user_turn = self.n_user_turns - 1;
        let item = |item: &str, weight: &str, is_required, kind| GraderSpec {
            item: item.to_owned(),
            user_turn,
            weight: weight.parse().unwrap_or(Decimal::ZERO),
            is_required,
            kind,
        };
        let branch =
            GraderKind::Branch { order, cases: cases.iter().map(|case| case.calls(self.api)).collect() };
        let replies = cases.iter().map(|case| case.reply(self.api)).collect();
        self.graders.push(item("calls", "0.6", true, branch));
        self.graders.push(item("reply", "0.3", false, GraderKind::ReplyBranch { replies }));
        self.graders.push(item("valid", "0.1", false, GraderKind::CallsValid));
    }

    /// The function schemas of the tools, as JSON.
    pub fn schemas(&self) -> Vec<Value> {
        self.api.schemas()
    }

    /// The face that the world shows in this task.
    pub fn api(&self) -> Api {
        self.api
    }
}

/// Whether the name at `index` of its list is kept out of the user messages of `family` in training.
pub(super) fn is_reserved(family: Family, index: usize) -> bool {
    (index + family as usize).is_multiple_of(RESERVED_ONE_IN)
}

/// A response, read by the world's own keys whatever face it shows.
#[derive(Debug)]
pub(super) struct Response {
    api: Api,
    tool: Tool,
    body: Value,
}

impl Default for Response {
    fn default() -> Self {
        Self { api: Api::Standard, tool: Tool::GetUser, body: Value::Null }
    }
}

impl Response {
    /// The field `key` as text; empty if there is none.
    pub fn text(&self, key: &str) -> String {
        match self.body.pointer(&self.api.path(self.tool, key)) {
            Some(Value::String(text)) => text.clone(),
            None => String::new(),
            Some(other) => other.to_string(),
        }
    }

    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        self.body.get("error").is_some()
    }
}

/// A text out of `phrasings` with each `{x}` replaced by the value of `x`.
pub(super) fn phrase(draws: &mut Draws, phrasings: &[&'static str], values: &[(&str, &str)]) -> String {
    fill(draws.pick(phrasings), &values.iter().copied().collect())
}

fn fill(template: &str, values: &BTreeMap<&str, &str>) -> String {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    text
}
