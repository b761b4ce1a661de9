//! Chat completions as servers write them.

use serde::Deserialize;

/// What a server wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Completion {
    /// The text, or a reason why there is none.
    pub content: Result<String, String>,
    /// The text, or what came in its place.
    pub raw: String,
    /// Tokens of the request, if they were reported.
    pub n_request_tokens: Option<i64>,
    /// Tokens of the answer, if they were reported.
    pub n_response_tokens: Option<i64>,
}

#[derive(Deserialize)]
struct Reply {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: Option<i64>,
    #[serde(default)]
    completion_tokens: Option<i64>,
}

/// What the body of a successful response says.
pub(super) fn read_completion(body: &str) -> Completion {
    let nothing = |reason: String| Completion {
        content: Err(reason),
        raw: body.to_owned(),
        n_request_tokens: None,
        n_response_tokens: None,
    };
    let reply: Reply = match serde_json::from_str(body) {
        Ok(reply) => reply,
        Err(error) => return nothing(format!("the server's response is no chat completion: {error}")),
    };
    let Some(choice) = reply.choices.into_iter().next() else {
        return nothing("the server's response has no choice".to_owned());
    };
    let content = match (choice.finish_reason.as_deref(), choice.message) {
        (Some("length"), _) => Err("the answer was cut off at `max_tokens`".to_owned()),
        (_, Message { refusal: Some(refusal), .. }) => Err(format!("the model refused: {refusal}")),
        (_, Message { content: Some(content), .. }) => Ok(content),
        (_, Message { content: None, .. }) => Err("the answer has no text".to_owned()),
    };
    let usage = reply.usage.as_ref();
    Completion {
        raw: content.clone().unwrap_or_else(|_| body.to_owned()),
        content,
        n_request_tokens: usage.and_then(|usage| usage.prompt_tokens),
        n_response_tokens: usage.and_then(|usage| usage.completion_tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_read_or_say_why_not() {
        let whole = r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],
            "usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}"#;
        let read = read_completion(whole);
        assert_eq!((read.content, read.raw), (Ok("hi".to_owned()), "hi".to_owned()));
        assert_eq!((read.n_request_tokens, read.n_response_tokens), (Some(5), Some(2)));
        for (body, reason) in [
            ("<html>", "no chat completion"),
            ("{\"choices\":[]}", "no choice"),
            ("{\"error\":{}}", "no chat completion"),
            (
                r#"{"choices":[{"message":{"content":"{","role":"x"},"finish_reason":"length"}]}"#,
                "max_tokens",
            ),
            (r#"{"choices":[{"message":{"content":null}}]}"#, "no text"),
            (r#"{"choices":[{"message":{"refusal":"I will not"}}]}"#, "I will not"),
        ] {
            let read = read_completion(body);
            assert!(read.content.unwrap_err().contains(reason), "{body}");
            assert_eq!(read.raw, body);
        }
    }
}
