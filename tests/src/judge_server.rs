//! A judge model's server for tests: it speaks HTTP on a socket, and fails in every way that a server can.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Writes an answer of the right form.
    Answer(bool),
    /// Writes a completion of this text.
    Text(String),
    /// Writes this status, header and body.
    Http(u16, Option<(&'static str, String)>, String),
    /// Waits, then does the other thing.
    After(Duration, Box<Self>),
    /// Closes the connection without a word.
    Drop,
    /// Announces an answer and closes the connection in the middle of it.
    Half,
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its body.
    pub body: Value,
    /// Its `Authorization`.
    pub authorization: Option<String>,
    /// When it had come.
    pub at: Instant,
}

impl Seen {
    /// The text of its only message.
    pub fn prompt(&self) -> &str {
        self.body["messages"][0]["content"].as_str().unwrap_or_default()
    }
}

/// How replies are chosen: by the request, and by how many of the same prompt came before.
type Choose = dyn Fn(&Seen, usize) -> Reply + Send + Sync;

/// A server that runs until it is dropped.
pub struct JudgeServer {
    /// Its address, as a configuration takes it.
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for JudgeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl JudgeServer {
    /// Begins to listen at a free port.
    ///
    /// # Errors
    /// If there is none.
    pub async fn start(choose: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let counts: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let choose: Arc<Choose> = Arc::new(choose);
        let task = tokio::spawn({
            let seen = Arc::clone(&seen);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (seen, counts, choose) =
                        (Arc::clone(&seen), Arc::clone(&counts), Arc::clone(&choose));
                    tokio::spawn(async move {
                        // A client that goes away is no fault of the server.
                        let _ = serve(stream, &seen, &counts, choose.as_ref()).await;
                    });
                }
            }
        });
        Ok(Self { url, seen, task })
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many requests came so far.
    pub fn n_seen(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

async fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<Seen>>,
    counts: &Mutex<BTreeMap<String, usize>>,
    choose: &Choose,
) -> io::Result<()> {
    let Some((head, body)) = read_request(&mut stream).await? else { return Ok(()) };
    let header = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    };
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let request = Seen { body, authorization: header("authorization"), at: Instant::now() };
    let nth = {
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(request.prompt().to_owned()).or_default();
        *count += 1;
        *count - 1
    };
    let mut reply = choose(&request, nth);
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    loop {
        let (status, extra, body) = match reply {
            Reply::After(wait, then) => {
                tokio::time::sleep(wait).await;
                reply = *then;
                continue;
            }
            Reply::Drop => return Ok(()),
            Reply::Half => {
                let body = completion("{\"answer\": true}");
                let head = head_of(200, body.len(), None);
                stream.write_all(head.as_bytes()).await?;
                return stream.write_all(&body.as_bytes()[..body.len() / 2]).await;
            }
            Reply::Answer(answer) => {
                let text = json!({
                    "understanding": "u", "found": "f", "condition": "c", "failures": "n", "answer": answer,
                });
                (200, None, completion(&text.to_string()))
            }
            Reply::Text(text) => (200, None, completion(&text)),
            Reply::Http(status, header, body) => (status, header, body),
        };
        let head = head_of(status, body.len(), extra);
        stream.write_all(head.as_bytes()).await?;
        return stream.write_all(body.as_bytes()).await;
    }
}

fn head_of(status: u16, n_bytes: usize, extra: Option<(&str, String)>) -> String {
    let extra = extra.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {n_bytes}\r\n{extra}connection: close\r\n\r\n"
    )
}

fn completion(text: &str) -> String {
    json!({
        "id": "c", "object": "chat.completion", "model": "judge",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    })
    .to_string()
}

/// Head and body of the request on a connection; `None` if it was closed before one came.
async fn read_request(stream: &mut TcpStream) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    loop {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head.lines().filter_map(|line| line.split_once(": ")).find_map(|(key, value)| {
                key.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok()).flatten()
            });
            let begin = end + 4;
            if bytes.len() >= begin + length.unwrap_or(0) {
                return Ok(Some((head, bytes.split_off(begin))));
            }
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}
