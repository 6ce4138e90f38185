//! Filters, tests and functions that behave as Jinja2's under transformers, where minijinja's own do not.

use std::fmt;

use chrono::format::{Item, StrftimeItems};
use chrono::NaiveDateTime;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{escape_formatter, AutoEscape, Environment, Error, ErrorKind, Output, State};

use crate::methods::strip;
use crate::python::{split_lines, to_str, JsonStyle};

pub fn install(env: &mut Environment<'static>) {
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(print);
    env.set_unknown_method_callback(crate::methods::call);
    env.add_filter("tojson", tojson);
    env.add_filter("string", string);
    env.add_filter("pprint", string);
    env.remove_global("debug");
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("trim", |value: &Value, chars: Option<&str>| -> Result<String, Error> {
        Ok(strip(&to_str(value)?, chars, true, true).to_string())
    });
    env.add_filter("upper", |value: &Value| -> Result<String, Error> { Ok(to_str(value)?.to_uppercase()) });
    env.add_filter("lower", |value: &Value| -> Result<String, Error> { Ok(to_str(value)?.to_lowercase()) });
    env.add_filter("replace", replace);
    env.add_filter("indent", indent);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_test("iterable", is_iterable);
    env.add_test("sequence", is_sequence);
    env.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_test("callable", is_callable);
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.to_vec()));
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_function("raise_exception", raise_exception);
}

pub fn add_clock(env: &mut Environment<'static>, now: NaiveDateTime) {
    env.add_function("strftime_now", move |format: &str| -> Result<String, Error> {
        let items: Vec<Item> = StrftimeItems::new(format).collect();
        if items.contains(&Item::Error) {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("{format:?} is not a time format")));
        }
        Ok(now.format_with_items(items.into_iter()).to_string())
    });
}

/// What a template refused with `raise_exception`.
#[derive(Debug)]
pub struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = to_str(message)?;
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if value.as_str().is_some() || *state.auto_escape() != AutoEscape::None {
        return escape_formatter(out, state, value);
    }
    out.write_str(&to_str(value)?).map_err(Error::from)
}

fn string(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => Ok(Value::from(to_str(value)?)),
    }
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value
        .len()
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("a value of kind {} has no length", value.kind())))
}

/// `tojson` of transformers: `json.dumps` with ensure_ascii off.
fn tojson(value: &Value, ensure_ascii: Option<&Value>, kwargs: Kwargs) -> Result<String, Error> {
    let flag = |name: &str| -> Result<bool, Error> { Ok(kwargs.get::<Option<Value>>(name)?.is_some_and(|v| v.is_true())) };
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_string),
        Some(count) if !count.is_none() => Some(" ".repeat(bounded(&count, "indent")?)),
        _ => None,
    };
    let (item_separator, key_separator) = match kwargs.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => (to_str(&pair.get_item_by_index(0)?)?, to_str(&pair.get_item_by_index(1)?)?),
        _ if indent.is_some() => (",".to_string(), ": ".to_string()),
        _ => (", ".to_string(), ": ".to_string()),
    };
    let style = JsonStyle {
        ensure_ascii: flag("ensure_ascii")? || ensure_ascii.is_some_and(|v| v.is_true()),
        sort_keys: flag("sort_keys")?,
        indent,
        item_separator,
        key_separator,
    };
    kwargs.assert_all_used()?;
    style.dump(value)
}

/// A width given by a template; negative ones count as 0.
fn bounded(value: &Value, what: &str) -> Result<usize, Error> {
    match i64::try_from(value.clone()) {
        Ok(width) if width <= 1024 => Ok(usize::try_from(width).unwrap_or(0)),
        _ => Err(Error::new(ErrorKind::InvalidOperation, format!("{what} is not a number up to 1024"))),
    }
}

fn replace(state: &State, value: &Value, old: &Value, new: &Value, count: Option<i64>) -> Result<String, Error> {
    let (text, old, new) = (to_str(value)?, to_str(old)?, to_str(new)?);
    let limit = count.and_then(|n| usize::try_from(n).ok());
    let most = limit.unwrap_or(usize::MAX).min(text.len() / old.len().max(1) + 1);
    state.consume_fuel((most.saturating_mul(new.len()) / 64) as u64)?;
    Ok(text.replacen(&old, &new, limit.unwrap_or(usize::MAX)))
}

/// Jinja2's `do_indent`.
fn indent(state: &State, value: &Value, width: Option<&Value>, first: Option<bool>, kwargs: Kwargs) -> Result<String, Error> {
    let width = match width {
        Some(width) => Some(width.clone()),
        None => kwargs.get::<Option<Value>>("width")?,
    };
    let first = match first {
        Some(first) => first,
        None => kwargs.get::<Option<bool>>("first")?.unwrap_or(false),
    };
    let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let margin = match &width {
        None => " ".repeat(4),
        Some(text) if text.as_str().is_some() => to_str(text)?,
        Some(count) => " ".repeat(bounded(count, "indent")?),
    };
    let text = to_str(value)? + "\n";
    let lines = split_lines(&text, false);
    state.consume_fuel((lines.len().saturating_mul(margin.len()) / 64) as u64)?;
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn default(value: &Value, other: Option<Value>, boolean: Option<bool>, kwargs: Kwargs) -> Result<Value, Error> {
    let other = match other {
        Some(other) => other,
        None => kwargs.get::<Option<Value>>("default_value")?.unwrap_or_else(|| Value::from("")),
    };
    let boolean = match boolean {
        Some(boolean) => boolean,
        None => kwargs.get::<Option<bool>>("boolean")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let missing = value.is_undefined() || (boolean && !value.is_true());
    Ok(if missing { other } else { value.clone() })
}

fn is_iterable(value: &Value) -> bool {
    value.is_undefined() || (!value.is_none() && value.try_iter().is_ok())
}

fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain
}
