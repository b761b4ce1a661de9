use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::AddedToken;

use super::error::{ChatError, read_json_if_present};
use super::special_tokens::SpecialTokens;

/// The tokenizer of a model folder (`tokenizer.json`), byte for byte as the Hugging Face library applies it.
///
/// Tokens that only `tokenizer_config.json` adds (`added_tokens_decoder`) are there too. Truncation and padding that
/// the file may carry are switched off: nothing is ever cut or filled silently.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    parsing: tokenizers::Tokenizer,
    literal: tokenizers::Tokenizer,
    special: Vec<(u32, String)>,
    vocab_size: usize,
}

impl Tokenizer {
    /// Loads `tokenizer.json` and, where present, `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`ChatError::Read`], [`ChatError::Json`] or [`ChatError::Tokenizer`] for a missing or broken file;
    /// [`ChatError::Key`] if the configuration gives an added token another id than the tokenizer would.
    pub fn load(dir: &Path) -> Result<Self, ChatError> {
        let path = dir.join("tokenizer.json");
        let bytes = fs_err::read(&path).map_err(|source| ChatError::Read { source })?;
        let mut parsing = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|source| ChatError::Tokenizer { path: path.clone(), source })?;
        let unlimited = parsing.with_truncation(None).map(|_| ());
        unlimited.map_err(|source| ChatError::Tokenizer { path: path.clone(), source })?;
        parsing.with_padding(None);
        add_configured_tokens(&mut parsing, dir)?;
        Ok(Self::from_library(parsing))
    }

    /// Wraps a tokenizer of the library.
    fn from_library(parsing: tokenizers::Tokenizer) -> Self {
        let mut special: Vec<(u32, String)> = parsing
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (id, token.content))
            .collect();
        special.sort();
        let mut literal = parsing.clone();
        literal.set_encode_special_tokens(true);
        let highest = parsing.get_vocab(true).into_values().max();
        let vocab_size = highest.map_or(0, |id| id as usize + 1);
        Self { parsing, literal, special, vocab_size }
    }

    /// Ids of a rendered template: the text of special tokens is read as those tokens. No token is added.
    ///
    /// # Errors
    /// [`ChatError::Encode`] if the library refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        encode(&self.parsing, text)
    }

    /// Ids of text from outside: what looks like a special token is spelled out in ordinary ones.
    ///
    /// Added tokens that are not special (`<think>` in Qwen3) are tokens here too, as in ordinary use.
    ///
    /// # Errors
    /// [`ChatError::Encode`] if the library refuses the text.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        encode(&self.literal, text)
    }

    /// Text of ids, special tokens kept. Bytes that are not UTF-8 and ids without a token give U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut out = String::new();
        for (index, known) in ids.split(|&id| self.parsing.id_to_token(id).is_none()).enumerate() {
            if index > 0 {
                out.push(char::REPLACEMENT_CHARACTER);
            }
            match self.parsing.decode(known, false) {
                Ok(text) => out.push_str(&text),
                Err(error) => {
                    tracing::warn!(%error, n_ids = known.len(), "ids could not be decoded");
                    out.push(char::REPLACEMENT_CHARACTER);
                }
            }
        }
        out
    }

    /// One more than the highest id. The model's vocabulary may be larger (padding), never smaller.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Id of the token that is exactly this text, added tokens included.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.parsing.token_to_id(token)
    }

    /// Text of a token as the vocabulary spells it.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.parsing.id_to_token(id)
    }

    /// The special tokens, by id.
    pub fn special_tokens(&self) -> &[(u32, String)] {
        &self.special
    }
}

fn encode(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, ChatError> {
    let encoding = tokenizer
        .encode_fast(text, false)
        .map_err(|source| ChatError::Encode { n_chars: text.chars().count(), source })?;
    Ok(encoding.get_ids().to_vec())
}

/// Adds the tokens of `added_tokens_decoder` that `tokenizer.json` lacks or has otherwise, in the order of their ids,
/// and marks the named special tokens as special.
fn add_configured_tokens(tokenizer: &mut tokenizers::Tokenizer, dir: &Path) -> Result<(), ChatError> {
    let path = dir.join("tokenizer_config.json");
    let json = read_json_if_present(&path)?.unwrap_or(Value::Null);
    let known = tokenizer.get_added_tokens_decoder();
    if let Some(Value::Object(map)) = json.get("added_tokens_decoder") {
        let mut tokens = Vec::new();
        for (id, value) in map {
            let key = format!("added_tokens_decoder.{id}");
            let id: u32 = id.parse().map_err(|_| wrong(&path, &key, "is not a token id"))?;
            let token: AddedToken = serde_json::from_value(with_defaults(value))
                .map_err(|error| wrong(&path, &key, &format!("is not an added token ({error})")))?;
            tokens.push((id, key, token));
        }
        tokens.sort_by_key(|(id, _, _)| *id);
        for (id, key, token) in tokens {
            if known.get(&id) == Some(&token) {
                continue;
            }
            let content = token.content.clone();
            add(tokenizer, token, &path)?;
            if tokenizer.token_to_id(&content) != Some(id) {
                return Err(wrong(&path, &key, &format!("does not get this id: `{content}`")));
            }
        }
    }
    let names = SpecialTokens::load(dir)?;
    let named = names.named().values().map(|text| (text, true));
    for (text, is_named) in named.chain(names.additional().iter().map(|text| (text, false))) {
        let Some(id) = tokenizer.token_to_id(text) else { continue };
        let added = tokenizer.get_added_tokens_decoder().remove(&id);
        // An added token that is not special stays so if it is only one of the additional ones.
        if added.as_ref().is_some_and(|token| token.special || !is_named) {
            continue;
        }
        let token = added.unwrap_or_else(|| AddedToken::from(text.as_str(), true));
        add(tokenizer, AddedToken { special: true, ..token }, &path)?;
    }
    Ok(())
}

fn add(tokenizer: &mut tokenizers::Tokenizer, token: AddedToken, path: &Path) -> Result<(), ChatError> {
    let added =
        if token.special { tokenizer.add_special_tokens([token]) } else { tokenizer.add_tokens([token]) };
    added.map(|_| ()).map_err(|source| ChatError::Tokenizer { path: path.to_owned(), source })
}

/// An added token as the configuration writes it, with the keys it may leave out.
fn with_defaults(value: &Value) -> Value {
    let is_special = value.get("special").and_then(Value::as_bool).unwrap_or_default();
    let mut token = serde_json::json!({
        "content": "", "single_word": false, "lstrip": false, "rstrip": false, "normalized": !is_special,
        "special": false,
    });
    if let (Some(token), Some(given)) = (token.as_object_mut(), value.as_object()) {
        for (key, value) in given {
            token.insert(key.clone(), value.clone());
        }
    }
    token
}

fn wrong(path: &Path, key: &str, problem: &str) -> ChatError {
    ChatError::Key { path: PathBuf::from(path), key: key.to_owned(), problem: problem.to_owned() }
}
