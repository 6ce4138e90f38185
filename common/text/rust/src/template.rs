//! A model's chat template, rendered as transformers renders it with Jinja2.

use std::error::Error as _;

use chrono::NaiveDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};
use serde_json::Value as Json;

use crate::ffi::{invalid, with_stack, Code, Failure, KtRange};
use crate::filters::{add_clock, install, Raised};
use crate::taint::Marker;

const NAME: &str = "chat_template";
/// Templates come with model files: one may spend this many instructions (and 64 bytes for each) on a text.
const FUEL: u64 = 2_000_000;
/// The longest published template has 30 KiB.
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Enough for expressions as long as a source can be and for values that nest as deeply as the
/// fuel allows: compiling, comparing and dropping them recurses.
const STACK_BYTES: usize = 256 << 20;
const RECURSION_MAX: usize = 200;

pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    special: Json,
}

pub struct RenderInput<'a> {
    pub messages_json: &'a str,
    pub tools_json: &'a str,
    pub kwargs_json: &'a str,
    pub add_generation_prompt: bool,
    pub now: NaiveDateTime,
    pub controls: Vec<&'a str>,
}

#[derive(Clone)]
struct Variables {
    messages: Json,
    tools: Json,
    kwargs: Json,
}

impl ChatTemplate {
    pub fn new(source: &str, special_json: &str) -> Result<ChatTemplate, Failure> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(invalid(format!("the chat template has {} bytes, at most {SOURCE_BYTES_MAX} are allowed", source.len())));
        }
        with_stack(STACK_BYTES, || ChatTemplate::compile(source, special_json))
    }

    fn compile(source: &str, special_json: &str) -> Result<ChatTemplate, Failure> {
        let special = parse(special_json, "special tokens", Json::is_object)?;
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| invalid(e.to_string()))?);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(RECURSION_MAX);
        install(&mut env);
        // Jinja2 reads CRLF and CR as LF.
        let source = without_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"));
        env.add_template_owned(NAME, source.clone())
            .map_err(|e| invalid(format!("the chat template does not parse: {}", describe(&e))))?;
        Ok(ChatTemplate { env, source, special })
    }

    /// The text, and the ranges of it that spell control tokens without being the template's own.
    pub fn render(&self, input: &RenderInput) -> Result<(String, Vec<KtRange>), Failure> {
        with_stack(STACK_BYTES, || self.render_here(input))
    }

    fn render_here(&self, input: &RenderInput) -> Result<(String, Vec<KtRange>), Failure> {
        let mut variables = Variables {
            messages: parse(input.messages_json, "messages", Json::is_array)?,
            tools: parse(input.tools_json, "tools", Json::is_array)?,
            kwargs: parse(input.kwargs_json, "template variables", Json::is_object)?,
        };
        let messages = variables.messages.as_array().map_or(&[][..], Vec::as_slice);
        if messages.is_empty() {
            return Err(invalid("messages is empty"));
        }
        if let Some(at) = messages.iter().position(|message| !message.is_object()) {
            return Err(invalid(format!("messages[{at}] is not an object")));
        }
        let mut env = self.env.clone();
        add_clock(&mut env, input.now);
        let plain = self.render_with(&env, &variables, input.add_generation_prompt)?;
        if input.controls.is_empty() {
            return Ok((plain, Vec::new()));
        }
        let seen = [plain.as_str(), self.source.as_str(), input.messages_json, input.tools_json, input.kwargs_json];
        let mut marker = Marker::new(&input.controls, &seen)?;
        marker.mark(&mut variables.messages, false)?;
        marker.mark(&mut variables.tools, false)?;
        marker.mark(&mut variables.kwargs, false)?;
        if !marker.any() {
            return Ok((plain, Vec::new()));
        }
        // A template that looks for control tokens in messages can come to another text, or to an error.
        let marked = self.render_with(&env, &variables, input.add_generation_prompt);
        match marked.map(|marked| marker.restore(&marked)) {
            Ok((text, ranges)) if text == plain => Ok((text, ranges)),
            _ => Err(invalid("a message spells a control token that the model's chat template itself looks for in messages")),
        }
    }

    fn render_with(&self, env: &Environment<'static>, variables: &Variables, add_generation_prompt: bool) -> Result<String, Failure> {
        let mut context = vec![("documents".to_string(), Value::from(()))];
        for fields in [&self.special, &variables.kwargs] {
            context.extend(fields.as_object().into_iter().flatten().map(|(name, field)| (name.clone(), to_value(field))));
        }
        context.push(("messages".to_string(), to_value(&variables.messages)));
        context.push(("tools".to_string(), to_value(&variables.tools)));
        context.push(("add_generation_prompt".to_string(), Value::from(add_generation_prompt)));
        env.get_template(NAME)
            .and_then(|template| template.render(Value::from_pairs(context)))
            .map_err(|error| failure(&error))
    }
}

/// Empty text is null.
fn parse(json: &str, what: &str, right_kind: fn(&Json) -> bool) -> Result<Json, Failure> {
    if json.is_empty() {
        return Ok(Json::Null);
    }
    let value: Json = serde_json::from_str(json).map_err(|e| invalid(format!("{what}: malformed JSON: {e}")))?;
    if !right_kind(&value) && !value.is_null() {
        return Err(invalid(format!("{what}: JSON of another kind than expected")));
    }
    Ok(value)
}

fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (_, Some(value)) => Value::from(value),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(to_value).collect(),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(name, field)| (name.as_str(), to_value(field)))),
    }
}

fn failure(error: &Error) -> Failure {
    if let Some(message) = raised(error) {
        return invalid(format!("the chat template refused: {message}"));
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return invalid("the chat template needs more steps than a template may take");
    }
    Failure { code: Code::InvalidArgument, message: format!("the chat template failed: {}", describe(error)) }
}

/// The message of `raise_exception`, however deep in macros it was called.
fn raised(error: &Error) -> Option<String> {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
            return Some(message.clone());
        }
        source = cause.source();
    }
    None
}

fn describe(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    match error.line() {
        Some(line) => format!("{detail} (line {line})"),
        None => detail,
    }
}

/// `{% generation %}` blocks tell training which text is the assistant's; rendering only needs them to be blocks.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}").map(|end| end + 2) else {
            rest = tag;
            break;
        };
        let inside = &tag[2..end - 2];
        let replaced = match inside.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace()) {
            "generation" => inside.replace("generation", "if true"),
            "endgeneration" => inside.replace("endgeneration", "endif"),
            _ => inside.to_string(),
        };
        out.push_str("{%");
        out.push_str(&replaced);
        out.push_str("%}");
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}
