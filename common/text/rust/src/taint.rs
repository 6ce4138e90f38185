//! Marks where text of a message spells (part of) a control token, so that the rendered text tells it from the
//! template's own.
//!
//! The first character of each such spelling is replaced by a sentinel, a private-use character that occurs nowhere
//! in the input, the template or its output; so nobody can forge one, and lengths stay as they are. After rendering
//! the sentinels are turned back, and their places are known.

use std::collections::{BTreeMap, BTreeSet};

use aho_corasick::AhoCorasick;
use serde_json::Value as Json;

use crate::ffi::{invalid, Failure, KtRange};

/// Supplementary private use areas: nothing of meaning lives there.
const FIRST_SENTINEL: u32 = 0xF0000;

pub struct Marker<'a> {
    controls: &'a [&'a str],
    finder: AhoCorasick,
    taken: BTreeSet<char>,
    sentinels: BTreeMap<char, char>,
}

fn is_private(c: char) -> bool {
    c as u32 >= FIRST_SENTINEL
}

impl<'a> Marker<'a> {
    /// `seen`: every text in which a sentinel must not occur already.
    pub fn new(controls: &'a [&'a str], seen: &[&str]) -> Result<Marker<'a>, Failure> {
        let finder = AhoCorasick::new(controls).map_err(|e| invalid(format!("control tokens: {e}")))?;
        let taken = seen.iter().flat_map(|text| text.chars()).filter(|c| is_private(*c)).collect();
        Ok(Marker { controls, finder, taken, sentinels: BTreeMap::new() })
    }

    pub fn any(&self) -> bool {
        !self.sentinels.is_empty()
    }

    /// A `role` names a part of the template's own markup (`<|user|>`): there only whole spellings count.
    pub fn mark(&mut self, json: &mut Json, is_role: bool) -> Result<(), Failure> {
        match json {
            Json::String(text) => self.mark_text(text, is_role)?,
            Json::Array(items) => {
                for item in items {
                    self.mark(item, false)?;
                }
            }
            Json::Object(fields) => {
                for (name, mut field) in std::mem::take(fields) {
                    self.mark(&mut field, name == "role")?;
                    let mut name = name;
                    self.mark_text(&mut name, true)?;
                    fields.insert(name, field);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn mark_text(&mut self, text: &mut String, whole_only: bool) -> Result<(), Failure> {
        self.taken.extend(text.chars().filter(|c| is_private(*c) && !self.sentinels.values().any(|s| s == c)));
        let mut places: BTreeSet<usize> = self.finder.find_overlapping_iter(text.as_str()).map(|found| found.start()).collect();
        if !whole_only {
            self.mark_edges(text, &mut places);
        }
        if places.is_empty() {
            return Ok(());
        }
        let mut out = String::with_capacity(text.len() + 4 * places.len());
        for (at, c) in text.char_indices() {
            out.push(if places.contains(&at) { self.sentinel(c)? } else { c });
        }
        *text = out;
        Ok(())
    }

    /// A token's beginning at the end of the text, or its end at the beginning, could be completed by what stands
    /// beside it in the rendered text. One character alone is too common to look at; of two texts that make up a
    /// token of four or more one has two.
    fn mark_edges(&self, text: &str, places: &mut BTreeSet<usize>) {
        for control in self.controls {
            for (cut, _) in control.char_indices().skip(1) {
                let (head, tail) = control.split_at(cut);
                if head.chars().nth(1).is_some() && text.ends_with(head) {
                    places.insert(text.len() - head.len());
                }
                if tail.chars().nth(1).is_some() && text.starts_with(tail) {
                    places.insert(0);
                }
            }
        }
    }

    fn sentinel(&mut self, original: char) -> Result<char, Failure> {
        if let Some(sentinel) = self.sentinels.get(&original) {
            return Ok(*sentinel);
        }
        let free = (FIRST_SENTINEL..=0x10FFFD)
            .filter_map(char::from_u32)
            .find(|c| !self.taken.contains(c))
            .ok_or_else(|| invalid("the messages use every private-use character"))?;
        self.taken.insert(free);
        self.sentinels.insert(original, free);
        Ok(free)
    }

    /// The text without sentinels, and where they stood.
    pub fn restore(&self, rendered: &str) -> (String, Vec<KtRange>) {
        let originals: BTreeMap<char, char> = self.sentinels.iter().map(|(original, sentinel)| (*sentinel, *original)).collect();
        let mut text = String::with_capacity(rendered.len());
        let mut ranges = Vec::new();
        for c in rendered.chars() {
            let begin = text.len();
            match originals.get(&c) {
                Some(original) => {
                    text.push(*original);
                    ranges.push(KtRange { begin, end: text.len() });
                }
                None => text.push(c),
            }
        }
        (text, ranges)
    }
}
