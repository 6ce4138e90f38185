//! Python's string and list methods that `minijinja_contrib::pycompat` lacks or does in another way.

use minijinja::value::{from_args, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::python::{is_space, split_lines, to_str};

pub fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match value.as_str() {
        Some(text) => string_method(state, text, method, args)?,
        None if value.kind() == ValueKind::Seq => list_method(value, method, args)?,
        None => None,
    };
    match own {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, method, args),
    }
}

fn string_method(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match method {
        "strip" => Value::from(strip(text, from_args::<(Option<&str>,)>(args)?.0, true, true)),
        "lstrip" => Value::from(strip(text, from_args::<(Option<&str>,)>(args)?.0, true, false)),
        "rstrip" => Value::from(strip(text, from_args::<(Option<&str>,)>(args)?.0, false, true)),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "split" | "rsplit" => {
            let (separator, count): (Option<&str>, Option<i64>) = from_args(args)?;
            let count = count.and_then(|n| usize::try_from(n).ok());
            Value::from(split(text, separator, count, method == "rsplit")?)
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            check_separator(separator)?;
            let parts = if method == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match parts {
                Some((before, after)) => [before, separator, after],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::new(parts.map(Value::from).to_vec()))
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let at = if method == "index" { text.find(what) } else { text.rfind(what) };
            let at = at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            split_lines(text, keep_ends.unwrap_or(false)).into_iter().map(Value::from).collect()
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Value::from(format!("{sign}{}{digits}", padding(state, text, width, '0')?))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            let pad = padding(state, text, width, fill.unwrap_or(' '))?;
            Value::from(justify(text, &pad, width, method))
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let items = items.try_iter()?.checked().map(|item| to_str(&item?)).collect::<Result<Vec<_>, Error>>()?;
            state.consume_fuel((text.len().saturating_mul(items.len()) / 64) as u64)?;
            Value::from(items.join(text))
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn list_method(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if method != "index" {
        return Ok(None);
    }
    let (what,): (&Value,) = from_args(args)?;
    for (i, item) in list.try_iter()?.checked().enumerate() {
        if item? == *what {
            return Ok(Some(Value::from(i)));
        }
    }
    Err(Error::new(ErrorKind::InvalidOperation, "value is not in list"))
}

/// `str.strip` and its halves; without `chars`, white space.
pub fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right {
        text.trim_end_matches(goes)
    } else {
        text
    }
}

fn check_separator(separator: &str) -> Result<(), Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    Ok(())
}

fn split(text: &str, separator: Option<&str>, count: Option<usize>, from_right: bool) -> Result<Vec<Value>, Error> {
    let limit = count.map_or(usize::MAX, |n| n.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some(separator) => {
            check_separator(separator)?;
            if from_right {
                text.rsplitn(limit, separator).collect()
            } else {
                text.splitn(limit, separator).collect()
            }
        }
        None => split_space(text, limit, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Parts between white space, from the end backwards if `from_right`; the last of `limit` parts is not split.
fn split_space(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(text, None, !from_right, from_right);
    while !rest.is_empty() {
        let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(cut) = cut.filter(|_| parts.len() + 1 < limit) else {
            parts.push(strip(rest, None, from_right, !from_right && parts.len() + 1 < limit));
            break;
        };
        let (before, after) = rest.split_at(cut);
        if from_right {
            parts.push(&after[after.chars().next().map_or(0, char::len_utf8)..]);
            rest = strip(before, None, false, true);
        } else {
            parts.push(before);
            rest = strip(after, None, true, false);
        }
    }
    parts
}

fn padding(state: &State, text: &str, width: usize, fill: char) -> Result<String, Error> {
    let count = width.saturating_sub(text.chars().count());
    state.consume_fuel((count / 16) as u64)?;
    Ok(std::iter::repeat(fill).take(count).collect())
}

fn justify(text: &str, pad: &str, width: usize, method: &str) -> String {
    match method {
        "ljust" => format!("{text}{pad}"),
        "rjust" => format!("{pad}{text}"),
        _ => {
            // CPython: an odd rest goes left when the width is odd.
            let count = pad.chars().count();
            let left = count / 2 + (count & width & 1);
            let at = pad.char_indices().nth(left).map_or(pad.len(), |(at, _)| at);
            format!("{}{text}{}", &pad[..at], &pad[at..])
        }
    }
}
