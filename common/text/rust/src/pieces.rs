//! The raw bytes that each id stands for.

use std::collections::HashMap;

use serde_json::Value as Json;
use tokenizers::Tokenizer;

use crate::ffi::{Code, Failure};

/// How spellings of a vocabulary become bytes; read from the tokenizer's own decoder.
pub enum Spelling {
    /// GPT-2's byte alphabet.
    ByteLevel,
    /// `<0xNN>` is a byte if `byte_fallback`; each (from, to) is replaced in all others.
    Sentencepiece { byte_fallback: bool, replace: Vec<(String, String)> },
}

pub struct Pieces {
    pub bytes: Vec<u8>,
    pub ends: Vec<u32>,
    pub control: Vec<u8>,
}

impl Spelling {
    pub fn of(tokenizer: &Tokenizer) -> Result<Spelling, Failure> {
        let decoder = tokenizer.get_decoder().map(serde_json::to_value);
        let Some(Ok(decoder)) = decoder else {
            return Err(unsupported("none"));
        };
        let parts = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().cloned().unwrap_or_default(),
            _ => vec![decoder],
        };
        if parts.iter().any(|part| part["type"] == "ByteLevel") {
            return Ok(Spelling::ByteLevel);
        }
        let mut byte_fallback = false;
        let mut replace = Vec::new();
        for part in &parts {
            match part["type"].as_str().unwrap_or("") {
                "ByteFallback" => byte_fallback = true,
                "Fuse" | "Strip" => {}
                "Replace" => replace.push((string(&part["pattern"]["String"])?, string(&part["content"])?)),
                "Metaspace" => replace.push((string(&part["replacement"])?, " ".to_string())),
                other => return Err(unsupported(other)),
            }
        }
        Ok(Spelling::Sentencepiece { byte_fallback, replace })
    }

    fn bytes(&self, token: &str, alphabet: &HashMap<char, u8>) -> Vec<u8> {
        match self {
            Spelling::ByteLevel => token
                .chars()
                .map(|c| alphabet.get(&c).copied())
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| token.as_bytes().to_vec()),
            Spelling::Sentencepiece { byte_fallback, replace } => {
                if let (true, Some(byte)) = (*byte_fallback, fallback_byte(token)) {
                    return vec![byte];
                }
                let mut text = token.to_string();
                for (from, to) in replace {
                    text = text.replace(from.as_str(), to);
                }
                text.into_bytes()
            }
        }
    }
}

impl Pieces {
    /// An added token's bytes are its own text; an id without a token has none.
    pub fn of(tokenizer: &Tokenizer, spelling: &Spelling) -> Result<Pieces, Failure> {
        let alphabet = byte_alphabet();
        let added = tokenizer.get_added_tokens_decoder();
        let vocab = tokenizer.get_vocab(true);
        let size = vocab.values().max().map_or(0, |id| *id as usize + 1);
        if size > ID_COUNT_MAX {
            return Err(crate::ffi::invalid(format!("the tokenizer's largest id is {}; at most {ID_COUNT_MAX} ids are allowed", size - 1)));
        }
        let mut pieces = Pieces { bytes: Vec::new(), ends: Vec::with_capacity(size), control: vec![0; size] };
        for id in 0..size as u32 {
            if let Some(token) = added.get(&id) {
                pieces.bytes.extend_from_slice(token.content.as_bytes());
                pieces.control[id as usize] = u8::from(token.special);
            } else if let Some(token) = tokenizer.id_to_token(id) {
                pieces.bytes.extend(spelling.bytes(&token, &alphabet));
            }
            pieces.ends.push(pieces.bytes.len() as u32);
        }
        Ok(pieces)
    }
}

/// Far above any published vocabulary; keeps one stray id from costing gigabytes.
const ID_COUNT_MAX: usize = 1 << 24;

fn unsupported(decoder: &str) -> Failure {
    Failure {
        code: Code::Unimplemented,
        message: format!("tokenizer decoder {decoder:?} is not supported (ByteLevel, ByteFallback, Metaspace are)"),
    }
}

fn string(json: &Json) -> Result<String, Failure> {
    json.as_str().map(str::to_string).ok_or_else(|| unsupported("Replace by a regular expression"))
}

/// `<0xNN>`, as the crate's ByteFallback decoder reads it.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// GPT-2's `bytes_to_unicode`, turned round: printable bytes stand for themselves, the others count from U+0100.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100u32;
    (0u8..=255)
        .map(|b| {
            if printable(b) {
                return (char::from(b), b);
            }
            next += 1;
            (char::from_u32(next - 1).unwrap_or_default(), b)
        })
        .collect()
}
