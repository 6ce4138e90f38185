#include "services/shard/engine/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/shard/engine/kernels/pack_blocks.h"
#include "services/shard/engine/kernels/panel_layout.h"

namespace kvmesh::shard {
namespace {

using model::WeightType;

// Features of rows that are copied before the next row's, so that the panel's lines stay at hand.
constexpr size_t kCopiedColumns = 128;

// Where types that are not quantised have output `lane` among the 32 of a feature.
size_t PlaceOf(WeightType type, size_t lane) {
  if (type != WeightType::kBF16) return lane;
  return lane % (kPanelRows / 2) * 2 + lane / (kPanelRows / 2);
}

// The row of the file that becomes row `row`: the halves of a head may be interleaved there.
size_t StoredRow(size_t row, size_t interleaved_head) {
  if (interleaved_head == 0) return row;
  const size_t in_head = row % interleaved_head;
  const size_t half = interleaved_head / 2;
  return row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

struct Source {
  const model::Tensor& tensor;
  size_t rows;
  size_t columns;
  size_t interleaved_head;  // 0: rows as stored

  const uint8_t* row(size_t index) const {
    return tensor.data.data() + StoredRow(index, interleaved_head) * tensor.row_bytes();
  }
};

template <typename Element>
void PackElements(const Source& source, size_t first_row, size_t rows, uint8_t* panel) {
  for (size_t begin = 0; begin < source.columns; begin += kCopiedColumns) {
    const size_t end = std::min(begin + kCopiedColumns, source.columns);
    for (size_t lane = 0; lane < rows; ++lane) {
      const uint8_t* row = source.row(first_row + lane);
      uint8_t* out = panel + PlaceOf(source.tensor.type, lane) * sizeof(Element);
      for (size_t column = begin; column < end; ++column) {
        std::memcpy(out + column * kPanelRows * sizeof(Element), row + column * sizeof(Element),
                    sizeof(Element));
      }
    }
  }
}

void PackBlocks(const Source& source, size_t first_row, size_t rows, uint8_t* panel) {
  const WeightType type = source.tensor.type;
  const PanelLayout layout = LayoutOf(type);
  const size_t stored_bytes = model::InfoOf(type).block_bytes;
  for (size_t block = 0; block < source.columns / layout.block; ++block) {
    for (size_t lane = 0; lane < rows; ++lane) {
      BlockFields fields;
      ReadStoredBlock(type, source.row(first_row + lane) + block * stored_bytes, fields);
      StorePanelBlock(type, fields, lane, panel + block * layout.block_bytes());
    }
  }
}

void PackPanel(const Source& source, size_t first_row, uint8_t* panel) {
  const size_t rows = std::min(kPanelRows, source.rows - first_row);
  std::memset(panel, 0, LayoutOf(source.tensor.type).panel_bytes(source.columns));
  switch (LayoutOf(source.tensor.type).element_bytes) {
    case 4:
      return PackElements<uint32_t>(source, first_row, rows, panel);
    case 2:
      return PackElements<uint16_t>(source, first_row, rows, panel);
    default:
      return PackBlocks(source, first_row, rows, panel);
  }
}

// Product and sum are exact in double, so that there is one rounding, as where f32 rounds the sum
// alone.
void WidenGroup(const PanelLayout& layout, const BlockFields& fields, size_t group, float* out) {
  const double scale = GroupScale(layout, fields, group);
  const double min = layout.has_min ? GroupMin(layout, fields, group) : 0;
  const uint8_t* codes = fields.codes.data() + group * layout.group;
  for (size_t i = 0; i < layout.group; ++i) {
    const double product = scale * CodeValue(layout, codes[i]);
    // Without a minimum nothing is added, so that -0 stays.
    out[i] = static_cast<float>(layout.has_min ? product + min : product);
  }
}

// Of one output's elements, `place` among the 32 of each feature.
template <typename Element>
void WidenElements(WeightType type, const uint8_t* panel, size_t columns, size_t place,
                   float* out) {
  uint8_t elements[kCopiedColumns * sizeof(Element)];
  for (size_t begin = 0; begin < columns; begin += kCopiedColumns) {
    const size_t count = std::min(kCopiedColumns, columns - begin);
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(elements + i * sizeof(Element),
                  panel + ((begin + i) * kPanelRows + place) * sizeof(Element), sizeof(Element));
    }
    model::Dequantize(type, {elements, count * sizeof(Element)}, {out + begin, count});
  }
}

absl::Status Check(const model::Tensor& tensor, uint32_t rope_head_dim) {
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, ": ", what));
  };
  if (tensor.shape.size() != 2) {
    return refuse(absl::StrCat(tensor.shape.size(), " dimensions, a matrix has 2"));
  }
  const uint64_t rows = tensor.shape[0];
  const uint64_t columns = tensor.shape[1];
  if (rows == 0 || columns == 0) return refuse(absl::StrCat("it is ", rows, " by ", columns));
  const uint32_t block = model::InfoOf(tensor.type).block_size;
  if (columns % block != 0) {
    return refuse(absl::StrCat("rows of ", columns, " are not whole blocks of ", block));
  }
  if (tensor.data.size() / tensor.row_bytes() != rows ||
      tensor.data.size() % tensor.row_bytes() != 0) {
    return refuse(
        absl::StrCat(tensor.data.size(), " bytes are not ", rows, " rows of ", tensor.row_bytes()));
  }
  if (tensor.rope_interleaved && rope_head_dim > 0 &&
      (rope_head_dim % 2 != 0 || rows % rope_head_dim != 0)) {
    return refuse(
        absl::StrCat(rows, " rows are not whole heads of ", rope_head_dim, " in two halves"));
  }
  return absl::OkStatus();
}

}  // namespace

size_t PackedMatrix::PackedBytes(WeightType type, size_t rows, size_t columns) {
  return (rows + kPanelRows - 1) / kPanelRows * LayoutOf(type).panel_bytes(columns);
}

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(ComputePool& pool, WeightArena& arena,
                                                const model::Tensor& tensor, uint32_t rope_head_dim,
                                                const Numerics& numerics) {
  KVMESH_RETURN_IF_ERROR(Check(tensor, rope_head_dim));
  const Source source = {.tensor = tensor,
                         .rows = tensor.shape[0],
                         .columns = tensor.shape[1],
                         .interleaved_head = tensor.rope_interleaved ? rope_head_dim : 0};
  KVMESH_ASSIGN_OR_RETURN(std::shared_ptr<uint8_t> packed,
                          arena.Allocate(PackedBytes(tensor.type, source.rows, source.columns)));
  const size_t panel_bytes = LayoutOf(tensor.type).panel_bytes(source.columns);
  pool.Run((source.rows + kPanelRows - 1) / kPanelRows, [&](size_t panel, uint32_t worker) {
    PackPanel(source, panel * kPanelRows, packed.get() + panel * panel_bytes);
  });
  return FromPacked(tensor.type, source.rows, source.columns, std::move(packed));
}

PackedMatrix PackedMatrix::FromPacked(WeightType type, size_t rows, size_t columns,
                                      std::shared_ptr<const uint8_t> packed) {
  PackedMatrix matrix;
  matrix.type_ = type;
  matrix.rows_ = rows;
  matrix.columns_ = columns;
  matrix.packed_ = std::move(packed);
  return matrix;
}

void PackedMatrix::WidenRow(size_t row, float* out) const {
  const PanelLayout layout = LayoutOf(type_);
  const uint8_t* panel = packed_.get() + row / kPanelRows * layout.panel_bytes(columns_);
  const size_t lane = row % kPanelRows;
  if (!layout.quantised()) {
    const size_t place = PlaceOf(type_, lane);
    return layout.element_bytes == 4 ? WidenElements<uint32_t>(type_, panel, columns_, place, out)
                                     : WidenElements<uint16_t>(type_, panel, columns_, place, out);
  }
  BlockFields fields;
  for (size_t block = 0; block < columns_ / layout.block; ++block, out += layout.block) {
    LoadPanelBlock(layout, panel + block * layout.block_bytes(), lane, fields);
    for (size_t group = 0; group < layout.groups(); ++group) {
      WidenGroup(layout, fields, group, out + group * layout.group);
    }
  }
}

}  // namespace kvmesh::shard
