use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigError, require};

/// What a judge model is asked, and how. Where it is, is in `[execution.judge]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JudgeConfig {
    /// The model, by the name its server knows it by. Must be given.
    pub model: String,
    /// File with a prompt of one's own in place of the built-in one: a Jinja template. Empty: the built-in one, which
    /// `envace-jobs score --print-prompt` prints. A relative path begins where the command is run; what counts is the
    /// text of the file, not its name.
    pub prompt: String,
    /// Checklists that are read of a task that has several; its reward is the mean over them, and a required item that
    /// does not pass in one of them closes the gate. 0: all. Default: 1.
    pub variants: usize,
    /// Which transcripts an item is asked about. Default: `final_state`.
    pub ask: Ask,
    /// How often each question is asked. An item passes, or fails, with more than half of its votes. Must be odd.
    /// Default: 1.
    pub votes: u32,
    /// Sampling temperature. Default: 0.
    pub temperature: f64,
    /// Nucleus of the sampling distribution. Default: 1.
    pub top_p: f64,
    /// Tokens an answer may have at most, its reasoning included. Default: 4096.
    pub max_tokens: u32,
    /// How the server is told of the answer's form. Default: `auto`.
    pub structured_output: StructuredOutput,
    /// Further fields of every request, as a JSON object; for a server that can switch a model's reasoning off for
    /// example `'{"chat_template_kwargs": {"enable_thinking": false}}'`. Empty: none.
    pub extra: String,
    /// How often a question is asked at most until the answer can be read. Default: 2.
    pub readable_tries: u32,
    /// What becomes of an item about calls or responses where a response of that state reports an error of the loop: a
    /// call that nothing answered. Default: `judged`.
    pub tool_errors: ToolErrors,
    /// Whether the rehearsal role is judged too, by a checklist of its own: are its responses true to the tools'
    /// schemas, to the recorded responses and to each other? `score.rehearsal_checklist_weight` makes it count.
    /// Default: false.
    pub rehearsal: bool,
}

/// Which transcripts a checklist item is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// One: the state at the end of the user turn.
    #[default]
    FinalState,
    /// The state after each turn of the actor; one that passes is enough. The reference does so: it costs a call a turn,
    /// and every wrong pass of the judge counts.
    PerTurn,
}

/// How a server is told of the form that an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StructuredOutput {
    /// By JSON schema; if the server refuses that, by its JSON mode; else in the prompt alone.
    #[default]
    Auto,
    /// By JSON schema.
    JsonSchema,
    /// By its JSON mode, which promises an object of whatever fields.
    JsonObject,
    /// In the prompt alone.
    Prompt,
}

/// What becomes of items about calls and responses after an error report of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolErrors {
    /// The judge decides; the transcript shows the report.
    #[default]
    Judged,
    /// They have failed, and the judge is not asked: as in the reference.
    Failed,
}

impl Default for JudgeConfig {
    fn default() -> Self {
        Self {
            model: String::new(),
            prompt: String::new(),
            variants: 1,
            ask: Ask::default(),
            votes: 1,
            temperature: 0.0,
            top_p: 1.0,
            max_tokens: 4096,
            structured_output: StructuredOutput::default(),
            extra: String::new(),
            readable_tries: 2,
            tool_errors: ToolErrors::default(),
            rehearsal: false,
        }
    }
}

impl JudgeConfig {
    /// The reference's values.
    pub fn paper() -> Self {
        Self {
            ask: Ask::PerTurn,
            temperature: 0.6,
            top_p: 0.8,
            max_tokens: 6_000,
            tool_errors: ToolErrors::Failed,
            ..Self::default()
        }
    }

    /// [`JudgeConfig::extra`] as fields.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if it is no JSON object, or sets a field that has a key of its own.
    pub fn extra_fields(&self) -> Result<serde_json::Map<String, serde_json::Value>, ConfigError> {
        const OWN: &[&str] =
            &["model", "messages", "temperature", "top_p", "max_tokens", "response_format", "stream", "n"];
        let wrong = |reason: String| ConfigError::Value { key: "score.judge.extra", reason };
        if self.extra.is_empty() {
            return Ok(serde_json::Map::new());
        }
        let fields: serde_json::Map<_, _> = serde_json::from_str(&self.extra)
            .map_err(|error| wrong(format!("must be a JSON object: {error}")))?;
        match fields.keys().find(|key| OWN.contains(&key.as_str())) {
            Some(key) => Err(wrong(format!("must not set `{key}`"))),
            None => Ok(fields),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(!self.model.is_empty(), "score.judge.model", "must name the judge model")?;
        let is_odd = self.votes % 2 == 1 && self.votes < 100;
        require(is_odd, "score.judge.votes", "must be odd, so that one side has more, and below 100")?;
        require((0.0..=2.0).contains(&self.temperature), "score.judge.temperature", "must be in [0, 2]")?;
        require(self.top_p > 0.0 && self.top_p <= 1.0, "score.judge.top_p", "must be in (0, 1]")?;
        require(self.max_tokens > 0, "score.judge.max_tokens", "must be above 0")?;
        let is_sound = (1..=10).contains(&self.readable_tries);
        require(is_sound, "score.judge.readable_tries", "must be between 1 and 10")?;
        let is_useful = self.votes == 1 || self.temperature > 0.0;
        require(is_useful, "score.judge.votes", "at temperature 0 all votes are alike: set `temperature`")?;
        self.extra_fields().map(drop)
    }
}

/// Where judge models are and what calls of them may take. Changes no verdict that is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JudgeEndpoints {
    /// Addresses of OpenAI-compatible servers that have the model, up to and including the version, such as
    /// `["http://localhost:8000/v1"]`. Calls go to the least busy one.
    pub urls: Vec<String>,
    /// Environment variable that holds the API key. It is read when the first call is made, and written nowhere. Not set:
    /// calls are made without a key. Default: "ENVACE_JUDGE_API_KEY".
    pub api_key_env: String,
    /// Calls under way at a time. Default: 32.
    pub concurrency: usize,
    /// Seconds that one call may take. Default: 120.
    pub call_timeout_s: f64,
    /// Seconds that all calls of a stage may take together. 0: no limit. What is answered by then is kept. Default: 0.
    pub total_timeout_s: f64,
    /// How often a call is repeated that failed for a passing reason: no connection, no answer in time, HTTP 408, 429 or
    /// 5xx. Default: 5.
    pub retries: usize,
    /// Seconds before the first repetition, about doubled each time up to 60; a server's `Retry-After` prolongs them.
    /// Default: 1.
    pub retry_delay_s: f64,
    /// Seconds without any answer, while calls fail, after which the stage stops. Default: 60.
    pub down_after_s: f64,
    /// Price of a million tokens of requests, for `score --estimate`. 0: not known.
    pub request_token_price: f64,
    /// Price of a million tokens of answers, for `score --estimate`. 0: not known.
    pub response_token_price: f64,
}

impl Default for JudgeEndpoints {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            api_key_env: "ENVACE_JUDGE_API_KEY".to_owned(),
            concurrency: 32,
            call_timeout_s: 120.0,
            total_timeout_s: 0.0,
            retries: 5,
            retry_delay_s: 1.0,
            down_after_s: 60.0,
            request_token_price: 0.0,
            response_token_price: 0.0,
        }
    }
}

impl JudgeEndpoints {
    /// The addresses of chat completions.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for one that is no address, or holds a secret that messages would show.
    pub fn completions(&self) -> Result<Vec<url::Url>, ConfigError> {
        let parse = |text: &String| {
            let wrong = |reason: String| ConfigError::Value { key: "execution.judge.urls", reason };
            let url: url::Url =
                text.parse().map_err(|error| wrong(format!("`{text}` is no address: {error}")))?;
            if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
                return Err(wrong(
                    "an address must hold no key: put it into the variable of `api_key_env`".to_owned(),
                ));
            }
            if !matches!(url.scheme(), "http" | "https") {
                return Err(wrong(format!("`{text}` must begin with http:// or https://")));
            }
            let whole = format!("{}/chat/completions", url.as_str().trim_end_matches('/'));
            whole.parse().map_err(|error| wrong(format!("`{whole}` is no address: {error}")))
        };
        self.urls.iter().map(parse).collect()
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.completions()?;
        let is_sound = (1..=4096).contains(&self.concurrency);
        require(is_sound, "execution.judge.concurrency", "must be between 1 and 4096")?;
        require(self.retries <= 100, "execution.judge.retries", "must be at most 100")?;
        // A day and more: a longer wait is a slip, and far from what a timer holds.
        let is_time = |seconds: f64| (0.0..=1e6).contains(&seconds);
        let is_call = is_time(self.call_timeout_s) && self.call_timeout_s > 0.0;
        require(is_call, "execution.judge.call_timeout_s", "must be above 0 and at most 1000000")?;
        for (key, value) in [
            ("execution.judge.total_timeout_s", self.total_timeout_s),
            ("execution.judge.retry_delay_s", self.retry_delay_s),
            ("execution.judge.down_after_s", self.down_after_s),
        ] {
            require(is_time(value), key, "must be between 0 and 1000000")?;
        }
        for (key, value) in [
            ("execution.judge.request_token_price", self.request_token_price),
            ("execution.judge.response_token_price", self.response_token_price),
        ] {
            require(value >= 0.0 && value.is_finite(), key, "must be 0 or above")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_chat_completions_and_hold_no_key() {
        let of =
            |text: &str| JudgeEndpoints { urls: vec![text.to_owned()], ..Default::default() }.completions();
        for text in ["http://localhost:8000/v1", "http://localhost:8000/v1/"] {
            assert_eq!(of(text).unwrap()[0].as_str(), "http://localhost:8000/v1/chat/completions");
        }
        for text in
            ["", "localhost:8000", "ftp://host/v1", "http://me:key@host/v1", "https://host/v1?key=s3cret"]
        {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains("execution.judge.urls") && !error.contains("s3cret"), "{text}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        let sound = JudgeConfig { model: "m".to_owned(), ..Default::default() };
        sound.check().unwrap();
        for (key, config) in [
            ("score.judge.model", JudgeConfig::default()),
            ("score.judge.votes", JudgeConfig { votes: 2, ..sound.clone() }),
            ("score.judge.votes", JudgeConfig { votes: 3, ..sound.clone() }),
            ("score.judge.temperature", JudgeConfig { temperature: f64::NAN, ..sound.clone() }),
            ("score.judge.extra", JudgeConfig { extra: "[]".to_owned(), ..sound.clone() }),
            ("score.judge.extra", JudgeConfig { extra: r#"{"n": 4}"#.to_owned(), ..sound.clone() }),
        ] {
            assert!(config.check().unwrap_err().to_string().contains(key), "{config:?}");
        }
        JudgeConfig { votes: 3, temperature: 0.5, ..sound }.check().unwrap();
        for (key, config) in [
            ("concurrency", JudgeEndpoints { concurrency: 0, ..Default::default() }),
            ("call_timeout_s", JudgeEndpoints { call_timeout_s: f64::INFINITY, ..Default::default() }),
            ("down_after_s", JudgeEndpoints { down_after_s: -1.0, ..Default::default() }),
            ("request_token_price", JudgeEndpoints { request_token_price: f64::NAN, ..Default::default() }),
        ] {
            assert!(config.check().unwrap_err().to_string().contains(key), "{config:?}");
        }
    }
}
