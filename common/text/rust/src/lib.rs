//! Tokenizers and chat templates behind the C interface of `kvmesh_text.h`.

mod ffi;
mod filters;
mod methods;
mod pieces;
mod python;
mod taint;
mod template;
mod tokenizer;

use ffi::{array, guard, KtRange, KtSink, KtSlice};
use template::{ChatTemplate, RenderInput};
use tokenizer::TextTokenizer;

/// # Safety
/// Pointers are as `kvmesh_text.h` states.
#[no_mangle]
pub unsafe extern "C" fn kt_tokenizer_new(json: KtSlice, out: *mut *mut TextTokenizer, error: KtSink) -> i32 {
    guard(error, || {
        *out = Box::into_raw(Box::new(TextTokenizer::from_json(json.bytes())?));
        Ok(())
    })
}

/// # Safety
/// `tokenizer` came from kt_tokenizer_new and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn kt_tokenizer_free(tokenizer: *mut TextTokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// # Safety
/// Pointers are as `kvmesh_text.h` states.
#[no_mangle]
pub unsafe extern "C" fn kt_tokenizer_pieces(
    tokenizer: *const TextTokenizer,
    bytes: KtSink,
    ends: KtSink,
    control: KtSink,
    error: KtSink,
) -> i32 {
    guard(error, || {
        let pieces = (*tokenizer).pieces()?;
        bytes.put_bytes(&pieces.bytes);
        ends.put_array(&pieces.ends);
        control.put_bytes(&pieces.control);
        Ok(())
    })
}

/// # Safety
/// Pointers are as `kvmesh_text.h` states.
#[no_mangle]
pub unsafe extern "C" fn kt_tokenizer_encode(
    tokenizer: *const TextTokenizer,
    text: KtSlice,
    untrusted: *const KtRange,
    untrusted_count: usize,
    add_special: bool,
    ids: KtSink,
    error: KtSink,
) -> i32 {
    guard(error, || {
        let text = text.text("text")?;
        let untrusted = array(untrusted, untrusted_count);
        ids.put_array(&(*tokenizer).encode(text, untrusted, add_special)?);
        Ok(())
    })
}

/// # Safety
/// Pointers are as `kvmesh_text.h` states.
#[no_mangle]
pub unsafe extern "C" fn kt_template_new(
    source: KtSlice,
    special_json: KtSlice,
    out: *mut *mut ChatTemplate,
    error: KtSink,
) -> i32 {
    guard(error, || {
        let template = ChatTemplate::new(source.text("the chat template")?, special_json.text("special tokens")?)?;
        *out = Box::into_raw(Box::new(template));
        Ok(())
    })
}

/// # Safety
/// `template` came from kt_template_new and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn kt_template_free(template: *mut ChatTemplate) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

#[repr(C)]
pub struct KtRenderInput {
    messages_json: KtSlice,
    tools_json: KtSlice,
    kwargs_json: KtSlice,
    add_generation_prompt: bool,
    year: i32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
    controls: *const KtSlice,
    control_count: usize,
}

/// # Safety
/// Pointers are as `kvmesh_text.h` states.
#[no_mangle]
pub unsafe extern "C" fn kt_template_render(
    template: *const ChatTemplate,
    input: *const KtRenderInput,
    text: KtSink,
    untrusted: KtSink,
    error: KtSink,
) -> i32 {
    guard(error, || {
        let raw = &*input;
        let controls = array(raw.controls, raw.control_count)
            .iter()
            .filter_map(|control| std::str::from_utf8(control.bytes()).ok())
            .collect();
        let now = chrono::NaiveDate::from_ymd_opt(raw.year, raw.month, raw.day)
            .and_then(|date| date.and_hms_opt(raw.hour, raw.minute, raw.second))
            .ok_or_else(|| ffi::invalid("the time given to the chat template is no time"))?;
        let (rendered, ranges) = (*template).render(&RenderInput {
            messages_json: raw.messages_json.text("messages")?,
            tools_json: raw.tools_json.text("tools")?,
            kwargs_json: raw.kwargs_json.text("template variables")?,
            add_generation_prompt: raw.add_generation_prompt,
            now,
            controls,
        })?;
        text.put_bytes(rendered.as_bytes());
        untrusted.put_array(&ranges);
        Ok(())
    })
}
