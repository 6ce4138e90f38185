//! Text to ids by the `tokenizers` crate, with control tokens only where the text is trusted.

use tokenizers::normalizer::Range;
use tokenizers::{
    Encoding, Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Token, Tokenizer,
};

use crate::ffi::{invalid, Failure, KtRange};
use crate::pieces::{Pieces, Spelling};

pub struct TextTokenizer {
    inner: Tokenizer,
    spelling: Spelling,
    /// A byte that occurs in no added token: written over the first character of a forged one.
    mask: u8,
}

/// One added token in a text: `begin..end` with the white space it strips, `text_begin..text_end` without.
struct AddedMatch {
    id: u32,
    begin: usize,
    end: usize,
    text_begin: usize,
    text_end: usize,
    control: bool,
}

impl TextTokenizer {
    pub fn from_json(json: &[u8]) -> Result<TextTokenizer, Failure> {
        let mut inner = Tokenizer::from_bytes(json).map_err(|e| invalid(format!("tokenizer.json: {e}")))?;
        // Both belong to training and batching; a file that has them on would shorten or lengthen every text.
        inner.with_truncation(None).map_err(|e| invalid(e.to_string()))?;
        inner.with_padding(None);
        let spelling = Spelling::of(&inner)?;
        let added = inner.get_added_tokens_decoder();
        let mask = (0u8..32)
            .find(|byte| !added.values().any(|token| token.content.as_bytes().contains(byte)))
            .ok_or_else(|| invalid("the tokenizer's added tokens use every control character"))?;
        Ok(TextTokenizer { inner, spelling, mask })
    }

    pub fn pieces(&self) -> Result<Pieces, Failure> {
        Pieces::of(&self.inner, &self.spelling)
    }

    pub fn encode(&self, text: &str, untrusted: &[KtRange], add_special: bool) -> Result<Vec<u32>, Failure> {
        let encoding = match self.genuine_matches(text, untrusted)? {
            None => self.inner.encode_fast(text, add_special),
            Some(matches) => self
                .encode_with(text, &matches)
                .and_then(|encoding| self.inner.post_process(encoding, None, add_special)),
        };
        Ok(encoding.map_err(|e| invalid(format!("tokenizing: {e}")))?.get_ids().to_vec())
    }

    /// The added tokens of `text` without the control tokens that touch an untrusted range; None: there is none of
    /// those, so that the crate's own way is right.
    ///
    /// A forged token's first character is written over and the text matched again, since it may have hidden another
    /// token that overlaps it. Only positions are taken from the text with the marks.
    fn genuine_matches(&self, text: &str, untrusted: &[KtRange]) -> Result<Option<Vec<AddedMatch>>, Failure> {
        if untrusted.is_empty() {
            return Ok(None);
        }
        let mut masked = text.to_string();
        let mut any_forged = false;
        loop {
            let matches = self.added_matches(&masked);
            let forged: Vec<_> = matches.iter().filter(|m| m.control && overlaps(untrusted, m.text_begin, m.text_end)).collect();
            if forged.is_empty() {
                return Ok(any_forged.then_some(matches));
            }
            any_forged = true;
            let mut bytes = masked.into_bytes();
            for m in forged {
                let end = (m.text_begin + 1..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
                bytes[m.text_begin..end].fill(self.mask);
            }
            masked = String::from_utf8(bytes).map_err(|_| invalid("text is not UTF-8"))?;
        }
    }

    fn added_matches(&self, text: &str) -> Vec<AddedMatch> {
        let added = self.inner.get_added_vocabulary();
        let split = added.extract_and_normalize(self.inner.get_normalizer(), text);
        let mut matches = Vec::new();
        for (part, (begin, end), tokens) in split.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let Some(token) = tokens.as_ref().and_then(|tokens| tokens.first()) else {
                continue;
            };
            let spelled = added.get_added_tokens_decoder().get(&token.id);
            let inside = spelled.and_then(|s| part.find(&s.content).map(|at| (at, s.content.len())));
            let (text_begin, text_end) = match inside {
                Some((at, size)) if part.len() == end - begin => (begin + at, begin + at + size),
                _ => (begin, end),
            };
            matches.push(AddedMatch { id: token.id, begin, end, text_begin, text_end, control: spelled.is_some_and(|s| s.special) });
        }
        matches
    }

    /// As the crate encodes, with these added tokens in place of those it would find.
    fn encode_with(&self, text: &str, matches: &[AddedMatch]) -> tokenizers::Result<Encoding> {
        let mut split = PreTokenizedString::from(text);
        split.split(|_, whole| {
            let mut parts: Vec<(NormalizedString, Option<Vec<Token>>)> = Vec::new();
            let mut slice = |begin, end, tokens| {
                if let Some(part) = whole.slice(Range::Original(begin..end)) {
                    parts.push((part, tokens));
                }
            };
            let mut at = 0;
            for m in matches {
                slice(at, m.begin, None);
                slice(m.begin, m.end, Some(vec![Token::new(m.id, String::new(), (0, m.end - m.begin))]));
                at = m.end;
            }
            slice(at, text.len(), None);
            Ok(parts)
        })?;
        if let Some(normalizer) = self.inner.get_normalizer() {
            split.normalize(|part| normalizer.normalize(part))?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut split)?;
        }
        self.inner.get_model().tokenize_in_pretokenized(&mut split, None)?;
        split.into_encoding(None, 0, OffsetType::None)
    }
}

fn overlaps(ranges: &[KtRange], begin: usize, end: usize) -> bool {
    let first = ranges.partition_point(|range| range.end <= begin);
    ranges.get(first).is_some_and(|range| range.begin < end && range.begin < range.end)
}
