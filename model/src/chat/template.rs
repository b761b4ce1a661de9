use std::collections::BTreeMap;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::Value as Json;

use super::error::{ChatError, read_json, read_json_if_present, read_text};
use super::message::{ChatMessage, ToolCall};
use super::python_json::{str_of, tojson};
use super::special_tokens::SpecialTokens;
use super::template_date::Date;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// What a template is rendered with.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    /// The dialogue.
    pub messages: &'a [ChatMessage],
    /// JSON schemas of the tools; the template sees `none` where there are none.
    pub tools: &'a [Json],
    /// Whether to end with the opening of an assistant message.
    pub add_generation_prompt: bool,
    /// Passed on as `enable_thinking` where given.
    pub enable_thinking: Option<bool>,
    /// Further variables of the template. `date` (`YYYY-MM-DD`) is what `strftime_now` returns the parts of.
    pub extra: &'a BTreeMap<String, Json>,
}

/// The chat template of a model folder, run as it is.
///
/// It is taken from `chat_template.jinja` (with `additional_chat_templates/tool_use.jinja`), else from
/// `tokenizer_config.json`: a text, or a list of named ones, of which `tool_use` is preferred where there are tools.
///
/// The environment is that of the reference implementation: blocks are trimmed, `tojson` is `json.dumps` without
/// escaping of HTML, values print as Python prints them, `raise_exception`, loop controls and `generation` blocks
/// work, and the named special tokens are variables. `strftime_now` is an error unless a date is given, because the
/// same dialogue must always give the same text. Known differences: whole numbers beyond 64 bits in arguments become
/// floats, and `~` writes `none` and `true` in lower case.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    origins: BTreeMap<String, String>,
    special_tokens: SpecialTokens,
}

impl ChatTemplate {
    /// Finds and compiles the template of a model folder.
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`] where there is none, [`ChatError::Template`] with its line where it does not parse,
    /// [`ChatError::Key`] for a template of another type, and those of reading the files.
    pub fn load(dir: &Path) -> Result<Self, ChatError> {
        let mut sources = Vec::new();
        let file = dir.join("chat_template.jinja");
        if file.exists() {
            sources.push((DEFAULT.to_owned(), file.display().to_string(), read_text(&file)?));
            let file = dir.join("additional_chat_templates").join("tool_use.jinja");
            if file.exists() {
                sources.push((TOOL_USE.to_owned(), file.display().to_string(), read_text(&file)?));
            }
        } else {
            sources = configured_sources(dir)?;
        }
        Self::compile(dir, sources, SpecialTokens::load(dir)?)
    }

    fn compile(
        dir: &Path,
        sources: Vec<(String, String, String)>,
        special_tokens: SpecialTokens,
    ) -> Result<Self, ChatError> {
        if sources.is_empty() {
            return Err(ChatError::NoTemplate { dir: dir.to_owned() });
        }
        let mut out = Self { environment: environment(), origins: BTreeMap::new(), special_tokens };
        for (name, origin, text) in sources {
            out.environment
                .add_template_owned(name.clone(), without_generation_tags(&with_line_feeds(&text)))
                .map_err(|error| failure(&origin, error))?;
            out.origins.insert(name, origin);
        }
        Ok(out)
    }

    /// Text of a dialogue.
    ///
    /// Arguments of tool calls are given as the reference implementation's users give them: JSON parsed, so that the
    /// template decides how it is written; a JSON string, or text that is not JSON, as that text.
    ///
    /// # Errors
    /// [`ChatError::Template`] where the template refuses the dialogue or fails on it.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String, ChatError> {
        self.render_json(&RenderJson::new(input))
    }

    pub(super) fn render_json(&self, input: &RenderJson<'_>) -> Result<String, ChatError> {
        let is_tool_use = !input.tools.is_empty() && self.origins.contains_key(TOOL_USE);
        let name = if is_tool_use || !self.origins.contains_key(DEFAULT) { TOOL_USE } else { DEFAULT };
        let origin = self.origin(name);
        let mut context: BTreeMap<String, Value> = BTreeMap::new();
        for (name, text) in self.special_tokens.named() {
            context.insert(name.clone(), Value::from(text.as_str()));
        }
        if !self.special_tokens.additional().is_empty() {
            let tokens = Value::from(Serde(self.special_tokens.additional()));
            context.insert("additional_special_tokens".to_owned(), tokens);
        }
        context.insert("messages".to_owned(), Value::from(Serde(&input.messages)));
        let tools = if input.tools.is_empty() { Value::from(()) } else { Value::from(Serde(&input.tools)) };
        context.insert("tools".to_owned(), tools);
        context.insert("documents".to_owned(), Value::from(()));
        context.insert("add_generation_prompt".to_owned(), Value::from(input.add_generation_prompt));
        if let Some(enable) = input.enable_thinking {
            context.insert("enable_thinking".to_owned(), Value::from(enable));
        }
        for (name, value) in input.extra {
            context.insert(name.clone(), Value::from(Serde(value)));
        }
        let date = input.extra.get("date").and_then(Json::as_str).and_then(Date::parse);
        context
            .insert("strftime_now".to_owned(), Value::from_function(move |pattern: &str| now(date, pattern)));
        self.environment
            .get_template(name)
            .and_then(|template| template.render(Value::from_pairs(context)))
            .map_err(|error| failure(origin, error))
    }

    /// Where the template of that name comes from: the file, and the key or name where the file holds several.
    fn origin<'a>(&'a self, name: &'a str) -> &'a str {
        self.origins.get(name).map_or(name, String::as_str)
    }

    /// Where the template that is rendered without tools comes from.
    pub fn default_origin(&self) -> &str {
        self.origins.get(DEFAULT).or_else(|| self.origins.get(TOOL_USE)).map_or(DEFAULT, String::as_str)
    }
}

/// [`RenderInput`] as the template sees it.
pub(super) struct RenderJson<'a> {
    pub messages: Vec<Json>,
    pub tools: Vec<Json>,
    pub add_generation_prompt: bool,
    pub enable_thinking: Option<bool>,
    pub extra: &'a BTreeMap<String, Json>,
}

impl<'a> RenderJson<'a> {
    pub(super) fn new(input: &RenderInput<'a>) -> Self {
        Self {
            messages: input.messages.iter().map(message_json).collect(),
            tools: input.tools.to_vec(),
            add_generation_prompt: input.add_generation_prompt,
            enable_thinking: input.enable_thinking,
            extra: input.extra,
        }
    }
}

fn message_json(message: &ChatMessage) -> Json {
    let mut out = serde_json::Map::new();
    out.insert("role".to_owned(), serde_json::json!(message.role));
    out.insert("content".to_owned(), Json::from(message.content.as_str()));
    let optional = [
        ("reasoning_content", &message.reasoning_content),
        ("tool_call_id", &message.tool_call_id),
        ("name", &message.name),
    ];
    for (key, value) in optional {
        if let Some(text) = value {
            out.insert(key.to_owned(), Json::from(text.as_str()));
        }
    }
    if !message.tool_calls.is_empty() {
        out.insert("tool_calls".to_owned(), message.tool_calls.iter().map(tool_call_json).collect());
    }
    Json::Object(out)
}

fn tool_call_json(call: &ToolCall) -> Json {
    let arguments = match serde_json::from_str::<Json>(&call.arguments) {
        Ok(Json::String(_)) | Err(_) => Json::from(call.arguments.as_str()),
        Ok(value) => value,
    };
    serde_json::json!({
        "type": "function",
        "id": call.id,
        "function": { "name": call.name, "arguments": arguments },
    })
}

/// Templates of `tokenizer_config.json`: (name, origin, text).
fn configured_sources(dir: &Path) -> Result<Vec<(String, String, String)>, ChatError> {
    let path = dir.join("tokenizer_config.json");
    let legacy = dir.join("chat_template.json");
    let json = match read_json_if_present(&path)? {
        Some(json) if json.get("chat_template").is_some() => Some((path, json)),
        _ if legacy.exists() => Some((legacy.clone(), read_json(&legacy)?)),
        _ => None,
    };
    let Some((path, json)) = json else { return Ok(Vec::new()) };
    let origin = format!("{}: chat_template", path.display());
    let wrong =
        |key: String, problem: &str| ChatError::Key { path: path.clone(), key, problem: problem.to_owned() };
    match json.get("chat_template") {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::String(text)) => Ok(vec![(DEFAULT.to_owned(), origin, text.clone())]),
        Some(Json::Array(named)) => {
            let mut out = Vec::new();
            for (index, entry) in named.iter().enumerate() {
                let text_at = |field: &str| {
                    entry
                        .get(field)
                        .and_then(Json::as_str)
                        .ok_or_else(|| wrong(format!("chat_template.{index}.{field}"), "is not a text"))
                };
                let (name, text) = (text_at("name")?, text_at("template")?);
                out.push((name.to_owned(), format!("{origin} `{name}`"), text.to_owned()));
            }
            let is_usable = out.iter().any(|(name, _, _)| name == DEFAULT || name == TOOL_USE);
            if is_usable {
                Ok(out)
            } else {
                Err(wrong("chat_template".to_owned(), "has no template named `default` or `tool_use`"))
            }
        }
        Some(_) => Err(wrong("chat_template".to_owned(), "is neither a text nor a list of named texts")),
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    match SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        Ok(syntax) => environment.set_syntax(syntax),
        Err(error) => tracing::error!(%error, "template syntax could not be set"),
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, _, value| out.write_str(&str_of(value)).map_err(Error::from));
    // As in Python: texts and mappings are sequences, what is not defined is an empty one, and `None` is nothing.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| value.is_undefined() || value.len().is_some());
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| str_of(value));
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, str_of(message)))
    });
    environment
}

fn now(date: Option<Date>, pattern: &str) -> Result<String, Error> {
    let missing =
        "strftime_now needs a date, and none was given: a text must not depend on the time it is made";
    date.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, missing))?.format(pattern)
}

fn failure(origin: &str, error: Error) -> ChatError {
    let problem = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    ChatError::Template { origin: origin.to_owned(), line: error.line(), problem, source: Box::new(error) }
}

/// The template with line feeds alone at the ends of its lines, as the reference implementation reads it.
fn with_line_feeds(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// The template with `{% generation %}` blocks, which mark the assistant's tokens elsewhere, turned into blocks that
/// are always rendered. Whitespace control stays as written.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            out.push_str(tag);
            return out;
        };
        let (tag, after) = tag.split_at(end);
        let inner = tag.trim_start_matches("{%");
        let word = inner.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_plain_blocks() {
        let given = "a{%- generation -%}b{%endgeneration%}{% if generation %}c{% endif %}{{ '%}' }}{%";
        let expected = "a{%- if true -%}b{%endif%}{% if generation %}c{% endif %}{{ '%}' }}{%";
        assert_eq!(without_generation_tags(given), expected);
    }
}
