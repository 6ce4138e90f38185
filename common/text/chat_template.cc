#include "common/text/chat_template.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/model_text.h"
#include "common/text/rust_library.h"

namespace kvmesh::text {
namespace {

struct FreeTemplate {
  void operator()(KtTemplate* tmpl) const { kt_template_free(tmpl); }
};
using TemplateHandle = std::unique_ptr<KtTemplate, FreeTemplate>;

struct Rendered {
  std::string text;
  std::vector<KtRange> untrusted;
};

class JinjaTemplate : public ChatTemplate {
 public:
  explicit JinjaTemplate(TemplateHandle handle) : handle_(std::move(handle)) {}

  absl::StatusOr<std::string> Render(const ChatInput& input) const override {
    KVMESH_ASSIGN_OR_RETURN(Rendered rendered, RenderWith(input, {}));
    return std::move(rendered.text);
  }

  absl::StatusOr<std::vector<TextSpan>> RenderSpans(const ChatInput& input,
                                                    const Tokenizer& tokenizer) const override {
    std::vector<KtSlice> controls;
    for (uint32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (!tokenizer.IsControl(id) || tokenizer.TokenBytes(id).empty()) continue;
      controls.push_back(ToSlice(tokenizer.TokenBytes(id)));
    }
    KVMESH_ASSIGN_OR_RETURN(const Rendered rendered, RenderWith(input, controls));
    const absl::string_view text = rendered.text;
    std::vector<TextSpan> spans;
    const auto add = [&](size_t begin, size_t end, bool trusted) {
      if (begin == end) return;
      spans.push_back({std::string(text.substr(begin, end - begin)), trusted});
    };
    size_t at = 0;
    for (const KtRange& range : rendered.untrusted) {
      add(at, range.begin, true);
      add(range.begin, range.end, false);
      at = range.end;
    }
    add(at, text.size(), true);
    return spans;
  }

 private:
  absl::StatusOr<Rendered> RenderWith(const ChatInput& input,
                                      absl::Span<const KtSlice> controls) const {
    const KtRenderInput raw = {.messages_json = ToSlice(input.messages_json),
                               .tools_json = ToSlice(input.tools_json),
                               .kwargs_json = ToSlice(input.kwargs_json),
                               .add_generation_prompt = input.add_generation_prompt,
                               .year = static_cast<int32_t>(input.now.year()),
                               .month = static_cast<uint32_t>(input.now.month()),
                               .day = static_cast<uint32_t>(input.now.day()),
                               .hour = static_cast<uint32_t>(input.now.hour()),
                               .minute = static_cast<uint32_t>(input.now.minute()),
                               .second = static_cast<uint32_t>(input.now.second()),
                               .controls = controls.data(),
                               .control_count = controls.size()};
    Rendered rendered;
    std::string error;
    const int32_t code = kt_template_render(handle_.get(), &raw, StringSink(&rendered.text),
                                            VectorSink(&rendered.untrusted), StringSink(&error));
    KVMESH_RETURN_IF_ERROR(ToStatus(code, error));
    return rendered;
  }

  const TemplateHandle handle_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::FromModel(
    const std::string& model_path) {
  KVMESH_ASSIGN_OR_RETURN(const ChatTemplateSource source, LoadChatTemplateSource(model_path));
  const nlohmann::json special(source.special);
  absl::StatusOr<std::unique_ptr<ChatTemplate>> tmpl = FromSource(
      source.source, special.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (!tmpl.ok()) {
    return absl::Status(tmpl.status().code(),
                        absl::StrCat(model_path, ": ", tmpl.status().message()));
  }
  return tmpl;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::FromSource(
    absl::string_view source, absl::string_view special_json) {
  KtTemplate* raw = nullptr;
  std::string error;
  KVMESH_RETURN_IF_ERROR(ToStatus(
      kt_template_new(ToSlice(source), ToSlice(special_json), &raw, StringSink(&error)), error));
  return std::make_unique<JinjaTemplate>(TemplateHandle(raw));
}

}  // namespace kvmesh::text
