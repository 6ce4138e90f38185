// C interface of the Rust library: tokenizers and chat templates.
//
// Slices are pointer and length; a length of 0 allows any pointer; the memory stays the caller's.
// Results go to sinks, which are called at most once each and copy what they are given. Every
// function but the _free ones returns a KtCode and, unless it is KT_OK, writes a message to
// `error`. No panic leaves the library. A tokenizer or template may be used by many threads at
// once.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct KtTokenizer KtTokenizer;
typedef struct KtTemplate KtTemplate;

typedef enum KtCode {
  KT_OK = 0,
  KT_INVALID_ARGUMENT = 1,
  KT_UNIMPLEMENTED = 2,
  KT_INTERNAL = 3,
} KtCode;

typedef struct KtSlice {
  const uint8_t* data;
  size_t size;
} KtSlice;

// Byte offsets [begin, end).
typedef struct KtRange {
  size_t begin;
  size_t end;
} KtRange;

typedef struct KtSink {
  void (*write)(void* user, const void* data, size_t size_bytes);
  void* user;
} KtSink;

// `json`: the contents of a tokenizer.json.
int32_t kt_tokenizer_new(KtSlice json, KtTokenizer** out, KtSink error);
void kt_tokenizer_free(KtTokenizer* tokenizer);

// The bytes of all ids from 0 on, joined; `ends`: uint32_t, where the bytes of each id end;
// `control`: one byte for each id, 1 for a control token.
int32_t kt_tokenizer_pieces(const KtTokenizer* tokenizer, KtSink bytes, KtSink ends, KtSink control,
                            KtSink error);

// `untrusted`: ascending ranges in which no control token begins, ends or lies. `ids`: uint32_t.
int32_t kt_tokenizer_encode(const KtTokenizer* tokenizer, KtSlice text, const KtRange* untrusted,
                            size_t untrusted_count, bool add_special, KtSink ids, KtSink error);

// `special_json`: an object of strings (bos_token, …), or empty.
int32_t kt_template_new(KtSlice source, KtSlice special_json, KtTemplate** out, KtSink error);
void kt_template_free(KtTemplate* template_);

typedef struct KtRenderInput {
  KtSlice messages_json;
  KtSlice tools_json;   // or empty
  KtSlice kwargs_json;  // or empty
  bool add_generation_prompt;
  int32_t year;
  uint32_t month, day, hour, minute, second;
  const KtSlice* controls;  // spellings of the control tokens that messages must not forge
  size_t control_count;
} KtRenderInput;

// `text`: the rendered text. `untrusted`: KtRange, ascending; every spelling of a control token
// that stems from messages, tools or kwargs overlaps one of them. No control tokens given: none.
int32_t kt_template_render(const KtTemplate* template_, const KtRenderInput* input, KtSink text,
                           KtSink untrusted, KtSink error);

#ifdef __cplusplus
}
#endif
