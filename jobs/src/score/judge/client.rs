//! Calls of OpenAI-compatible servers: the least busy of some, again after failures that pass.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use backon::{ExponentialBuilder, Retryable};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{StatusCode, Url};
use serde_json::{Map, Value, json};

use super::completion::{Completion, read_completion};
use crate::config::{JudgeEndpoints, StructuredOutput};
use crate::error::JobError;

/// Longest answer that is read, in bytes: whatever is longer is no answer of a judge.
const MAX_RESPONSE: usize = 4 << 20;
/// Longest time between two tries of one call, apart from what a server asks for.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// How long an endpoint that failed is avoided at least.
const AVOIDED: Duration = Duration::from_secs(5);
/// Failures without any answer before the endpoint can be taken to be down.
const DOWN_FAILURES: usize = 5;

/// A call that brought no completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallError {
    pub kind: CallErrorKind,
    /// What happened, without secrets.
    pub reason: String,
    /// What the server wrote, if anything.
    pub body: Option<String>,
}

/// What can be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallErrorKind {
    /// It can pass; a server may say after how long.
    Passing(Option<Duration>),
    /// The server does not take this request.
    Refused,
    /// It takes no request at all, or is not there: asking on makes no sense.
    Stop,
}

#[derive(Debug)]
struct Endpoint {
    url: Url,
    n_busy: AtomicUsize,
    /// Until when others are asked, if there are any.
    avoided_until: Mutex<Option<Instant>>,
}

impl Endpoint {
    fn is_avoided(&self) -> bool {
        self.avoided().is_some_and(|until| Instant::now() < until)
    }

    fn avoided(&self) -> MutexGuard<'_, Option<Instant>> {
        // One value is whole between any two statements.
        self.avoided_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of all endpoints together.
#[derive(Debug, Default)]
struct Health {
    /// First failure since the last answer, and how many there were.
    failing: Option<(Instant, usize)>,
}

/// The servers of a judge model.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    endpoints: Vec<Endpoint>,
    secret: Option<String>,
    limits: JudgeEndpoints,
    structured_output: StructuredOutput,
    /// How many forms of structured output the servers have refused; see [`Client::format`].
    n_refused_forms: AtomicU8,
    health: Mutex<Health>,
}

impl Client {
    /// Prepares calls, reading the API key; makes none.
    ///
    /// # Errors
    /// [`JobError::Refused`] without addresses, or with a key that is no text of a header.
    pub fn new(limits: &JudgeEndpoints, structured_output: StructuredOutput) -> Result<Self, JobError> {
        let endpoints: Vec<Endpoint> = limits
            .completions()?
            .into_iter()
            .map(|url| Endpoint { url, n_busy: AtomicUsize::new(0), avoided_until: Mutex::default() })
            .collect();
        if endpoints.is_empty() {
            return Err(JobError::refused(
                "there are questions to a judge model, but `execution.judge.urls` is empty",
                "set it to the addresses of OpenAI-compatible servers, such as [\"http://localhost:8000/v1\"]; a run \
                 that has begun takes a changed [execution] with `--config FILE`",
            ));
        }
        let secret = std::env::var(&limits.api_key_env).ok().filter(|key| !key.is_empty());
        let mut headers = HeaderMap::new();
        if let Some(secret) = &secret {
            let mut value = HeaderValue::try_from(format!("Bearer {secret}")).map_err(|_| {
                JobError::refused(
                    format!("the API key in {} holds characters that no header can", limits.api_key_env),
                    "is there a line break in it?",
                )
            })?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        // Refused if a provider is installed already, and then that one serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .timeout(Duration::from_secs_f64(limits.call_timeout_s))
            // The key is for these addresses and no others.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| {
                JobError::refused(format!("no HTTP client can be made: {error}"), "see its causes")
            })?;
        Ok(Self {
            http,
            endpoints,
            secret,
            limits: limits.clone(),
            structured_output,
            n_refused_forms: AtomicU8::new(0),
            health: Mutex::default(),
        })
    }

    /// Sends a request, again after failures that pass. `request` is without the form of the answer; what was sent in
    /// the end is returned beside what came of it.
    pub async fn complete(
        &self,
        request: &Map<String, Value>,
        schema: &Value,
    ) -> (Map<String, Value>, Result<Completion, CallError>) {
        loop {
            let refused = self.n_refused_forms.load(Ordering::Relaxed);
            let format = self.format(refused, schema);
            let mut whole = request.clone();
            if let Some(format) = &format {
                whole.insert("response_format".to_owned(), format.clone());
            }
            let backoff = ExponentialBuilder::default()
                .with_min_delay(Duration::from_secs_f64(self.limits.retry_delay_s))
                .with_max_delay(MAX_DELAY)
                .with_max_times(self.limits.retries)
                .with_jitter();
            let outcome = (|| self.attempt(&whole))
                .retry(backoff)
                .when(|error| matches!(error.kind, CallErrorKind::Passing(_)))
                .adjust(|error, delay| match error.kind {
                    CallErrorKind::Passing(Some(asked)) => delay.map(|delay| delay.max(asked)),
                    _ => delay,
                })
                .await;
            match &outcome {
                Err(error) if format.is_some() && self.is_auto() && is_about_format(error) => {
                    // Whoever notices first changes it for all.
                    let changed = self.n_refused_forms.compare_exchange(
                        refused,
                        refused + 1,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                    if changed.is_ok() {
                        tracing::warn!(reason = %error.reason, "the judge's server refuses this form of structured output");
                    }
                }
                _ => return (whole, outcome),
            }
        }
    }

    fn is_auto(&self) -> bool {
        self.structured_output == StructuredOutput::Auto
    }

    fn format(&self, refused: u8, schema: &Value) -> Option<Value> {
        let by_schema = || {
            let schema = json!({"name": "verdict", "strict": true, "schema": schema});
            Some(json!({"type": "json_schema", "json_schema": schema}))
        };
        let by_mode = || Some(json!({"type": "json_object"}));
        match (self.structured_output, refused) {
            (StructuredOutput::JsonSchema, _) | (StructuredOutput::Auto, 0) => by_schema(),
            (StructuredOutput::JsonObject, _) | (StructuredOutput::Auto, 1) => by_mode(),
            (StructuredOutput::Prompt | StructuredOutput::Auto, _) => None,
        }
    }

    /// One try at the least busy endpoint, of those that have not just failed.
    async fn attempt(&self, request: &Map<String, Value>) -> Result<Completion, CallError> {
        let by_load = |endpoint: &&Endpoint| (endpoint.is_avoided(), endpoint.n_busy.load(Ordering::Relaxed));
        let Some(endpoint) = self.endpoints.iter().min_by_key(by_load) else {
            return Err(CallError { kind: CallErrorKind::Stop, reason: "no address".to_owned(), body: None });
        };
        let busy = Busy::new(&endpoint.n_busy);
        let outcome = self.send(&endpoint.url, request).await;
        drop(busy);
        match &outcome {
            Err(CallError { kind: CallErrorKind::Passing(asked), reason, .. }) => {
                *endpoint.avoided() = Instant::now().checked_add(asked.unwrap_or_default().max(AVOIDED));
                if let Some(stop) = self.is_down(asked.unwrap_or_default(), reason) {
                    return Err(stop);
                }
            }
            _ => {
                *endpoint.avoided() = None;
                self.health.lock().unwrap_or_else(PoisonError::into_inner).failing = None;
            }
        }
        outcome
    }

    /// Counts a failure; an error once nothing has been answered for too long.
    fn is_down(&self, asked: Duration, reason: &str) -> Option<CallError> {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, n_failures) = health.failing.get_or_insert((Instant::now(), 0));
        *n_failures += 1;
        let (waited, n_failures) = (since.elapsed(), *n_failures);
        let limit = Duration::from_secs_f64(self.limits.down_after_s).saturating_add(asked);
        (n_failures >= DOWN_FAILURES && waited >= limit).then(|| CallError {
            kind: CallErrorKind::Stop,
            reason: format!(
                "no answer for {:.0} s in {n_failures} tries; the last one: {reason}",
                waited.as_secs_f64()
            ),
            body: None,
        })
    }

    async fn send(&self, url: &Url, request: &Map<String, Value>) -> Result<Completion, CallError> {
        let passing = |error: reqwest::Error| CallError {
            kind: CallErrorKind::Passing(None),
            reason: self.clean(&causes(&error)),
            body: None,
        };
        let mut response = self.http.post(url.clone()).json(request).send().await.map_err(passing)?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(wait_of);
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(passing)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_RESPONSE {
                let reason = format!("answer longer than {MAX_RESPONSE} bytes");
                return Err(CallError { kind: CallErrorKind::Refused, reason, body: None });
            }
        }
        // Wherever a server repeats the key, it ends here.
        let body = self.clean(&String::from_utf8_lossy(&body));
        if status.is_success() {
            return Ok(read_completion(&body));
        }
        let kind = match status {
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                CallErrorKind::Passing(retry_after)
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => CallErrorKind::Stop,
            _ if status.is_server_error() => CallErrorKind::Passing(retry_after),
            _ => CallErrorKind::Refused,
        };
        let said: String = body.chars().take(500).collect();
        Err(CallError { kind, reason: format!("HTTP {status}: {}", said.trim()), body: Some(body) })
    }

    /// A text without the key.
    fn clean(&self, text: &str) -> String {
        match &self.secret {
            Some(secret) => text.replace(secret.as_str(), "[API key]"),
            None => text.to_owned(),
        }
    }
}

/// Counts a call at an endpoint as long as it lives, whether it ends or is dropped.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn new(n_busy: &'a AtomicUsize) -> Self {
        n_busy.fetch_add(1, Ordering::Relaxed);
        Self(n_busy)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An error and its causes in one line; the address is in the first.
fn causes(error: &reqwest::Error) -> String {
    let chain = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The wait that a `Retry-After` asks for: seconds or a date.
fn wait_of(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Whether a server refused the request for its `response_format`.
fn is_about_format(error: &CallError) -> bool {
    const SIGNS: &[&str] =
        &["response_format", "json_schema", "json_object", "guided", "grammar", "structured"];
    let said = error.reason.to_lowercase();
    error.kind == CallErrorKind::Refused && SIGNS.iter().any(|sign| said.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_seconds_or_dates() {
        let wait = |text: &str| wait_of(&HeaderValue::from_str(text).unwrap());
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO), "long gone");
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        let waited = wait(&later).unwrap().as_secs();
        assert!((90..=100).contains(&waited), "{waited}");
        for text in ["-1", "soon", ""] {
            assert_eq!(wait(text), None, "{text}");
        }
    }
}
