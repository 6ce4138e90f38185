// A model's own chat template (Jinja), rendered by the `minijinja` crate with Python's printing and
// tojson rules. Immutable; thread-safe; bounded by fuel and recursion limits, since templates come
// with model files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/text/tokenizer.h"

namespace kvmesh::text {

struct ChatInput {
  std::string messages_json;  // array of objects: role, content, … Key order is kept.
  std::string tools_json;     // array, or empty for none
  std::string kwargs_json;    // object of further variables, or empty
  bool add_generation_prompt = true;
  absl::CivilSecond now;  // for strftime_now
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // tokenizer_config.json / chat_template.jinja / chat_template.json of a directory, or
  // tokenizer.chat_template of a GGUF. NotFound: the model has none. InvalidArgument: it does not
  // parse.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> FromModel(const std::string& model_path);
  // `special_json`: object with bos_token, eos_token, … as the template sees them.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> FromSource(absl::string_view source,
                                                                  absl::string_view special_json);

  // InvalidArgument: malformed JSON, or the template refused (raise_exception: its message is
  // passed on).
  virtual absl::StatusOr<std::string> Render(const ChatInput& input) const = 0;

  // The same text as spans, where text that came from message contents is not trusted: ready for
  // EncodeSpans. The texts joined equal Render(input).
  virtual absl::StatusOr<std::vector<TextSpan>> RenderSpans(const ChatInput& input,
                                                            const Tokenizer& tokenizer) const = 0;
};

}  // namespace kvmesh::text
