// Rows of Parquet files.

#include <redco/parquet.h>

#include "../../io/input_file.h"
#include "../../io/strict_json.h"
#include "parquet_column.h"
#include "parquet_schema.h"

#include <redco/error.h>

#include <ATen/ops/empty.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

namespace redco {

using namespace io;

namespace {

constexpr std::string_view magic = "PAR1", encrypted_magic = "PARE";
constexpr uint64_t max_footer = uint64_t{1} << 29;

template <class T>
T number_at(const ParquetColumn& column, int64_t value) {
  T number;
  std::memcpy(&number, column.numbers.data() + size_t(value) * sizeof(T), sizeof(T));
  return number;
}

// Copies `n` numbers of the type From to a tensor of the type To.
template <class From, class To>
at::Tensor copied(const ParquetColumn& column, int64_t first, int64_t n, c10::ScalarType dtype) {
  at::Tensor result = at::empty({n}, dtype);
  auto* out = static_cast<To*>(result.mutable_data_ptr());
  for (int64_t i = 0; i < n; ++i) out[i] = To(number_at<From>(column, first + i));
  return result;
}

// A row group: its columns, their memory and the last use.
struct Group {
  std::vector<ParquetColumn> columns;  // by leaf; empty for those that are not selected
  int64_t n_bytes = 0;
  uint64_t last_use = 0;
};

// Builds one row from the columns' levels and values.
class RowReader {
 public:
  RowReader(const std::string& where, const std::vector<ParquetLeaf>& leaves, const Group& group,
            const std::vector<const ParquetNode*>& nodes, int64_t row)
      : where_(where), leaves_(leaves), group_(group), cursors_(leaves.size()) {
    for (const ParquetNode* node : nodes)
      for (size_t i = node->first_leaf; i < node->end_leaf; ++i) start(i, row);
  }

  // None where there is a null.
  Tree read(const ParquetNode& node) {
    if (definition(node.first_leaf) < node.definition) {
      skip(node);
      return {};
    }
    if (node.kind == ParquetNode::list) return read_list(node);
    if (node.kind == ParquetNode::value) return read_value(node.first_leaf);
    Tree::Dict fields;
    for (const ParquetNode& child : node.children) {
      Tree value = read(child);
      if (!value.is_none()) fields[child.name] = std::move(value);
    }
    return fields;
  }

  void check_end(const ParquetNode& node) const {
    for (size_t i = node.first_leaf; i < node.end_leaf; ++i)
      require(cursors_[i].level == cursors_[i].end, where_, leaves_[i].path,
              ": its lists have other lengths than those beside them: the file is damaged");
  }

 private:
  struct Cursor {
    int64_t level = 0, value = 0, end = 0;
  };

  void start(size_t leaf, int64_t row) {
    const ParquetColumn& column = group_.columns[leaf];
    auto at = size_t(row);
    Cursor& cursor = cursors_[leaf];
    cursor.value = column.value_starts.empty() ? row : column.value_starts[at];
    bool has_lists = !column.level_starts.empty();
    cursor.level = has_lists ? column.level_starts[at] : row;
    cursor.end = !has_lists                            ? row + 1
                 : at + 1 < column.level_starts.size() ? column.level_starts[at + 1]
                                                       : column.n_levels;
  }

  void check_level(size_t leaf) const {
    require(cursors_[leaf].level < cursors_[leaf].end, where_, leaves_[leaf].path,
            ": its lists have other lengths than those beside them: the file is damaged");
  }

  int definition(size_t leaf) const {
    check_level(leaf);
    const auto& definitions = group_.columns[leaf].definitions;
    return definitions.empty() ? 0 : definitions[size_t(cursors_[leaf].level)];
  }

  void advance(size_t leaf) {
    check_level(leaf);
    Cursor& cursor = cursors_[leaf];
    if (group_.columns[leaf].has_value(cursor.level, leaves_[leaf])) ++cursor.value;
    ++cursor.level;
  }

  // Skips a null or an empty list: each leaf below has one level for it.
  void skip(const ParquetNode& node) {
    for (size_t i = node.first_leaf; i < node.end_leaf; ++i) advance(i);
  }

  // Whether the list of a node has a further element.
  bool goes_on(const ParquetNode& node) const {
    const Cursor& cursor = cursors_[node.first_leaf];
    return cursor.level < cursor.end &&
           group_.columns[node.first_leaf].repetitions[size_t(cursor.level)] == node.repetition;
  }

  Tree read_list(const ParquetNode& node) {
    const ParquetNode& element = node.children[0];
    bool has_numbers = element.kind == ParquetNode::value && is_number(element.first_leaf);
    if (definition(node.first_leaf) < node.element_definition) {
      skip(node);
      if (has_numbers) return numbers(element.first_leaf, 0, 0);
      return Tree::List{};
    }
    if (has_numbers) {
      const Cursor before = cursors_[element.first_leaf];
      Cursor& cursor = cursors_[element.first_leaf];
      do advance(element.first_leaf);
      while (goes_on(node));
      int64_t n = cursor.level - before.level;
      if (cursor.value - before.value == n) return numbers(element.first_leaf, before.value, n);
      cursor = before;
    }
    Tree::List list;
    do {
      list.push_back(read(element));
    } while (goes_on(node));
    return list;
  }

  bool is_number(size_t leaf) const {
    const ParquetLeaf& facts = leaves_[leaf];
    return facts.is_float16 ||
           (facts.type != ParquetType::bytes && facts.type != ParquetType::fixed_bytes);
  }

  at::Tensor numbers(size_t leaf, int64_t first, int64_t n) const {
    const ParquetLeaf& facts = leaves_[leaf];
    const ParquetColumn& column = group_.columns[leaf];
    switch (facts.type) {
      case ParquetType::boolean:
        return copied<uint8_t, bool>(column, first, n, at::kBool);
      case ParquetType::int32:
        if (facts.is_unsigned) return copied<uint32_t, int64_t>(column, first, n, at::kLong);
        return copied<int32_t, int64_t>(column, first, n, at::kLong);
      case ParquetType::int64:
        for (int64_t i = 0; i < n && facts.is_unsigned; ++i) integer(leaf, first + i);
        return copied<int64_t, int64_t>(column, first, n, at::kLong);
      case ParquetType::float32:
        return copied<float, float>(column, first, n, at::kFloat);
      case ParquetType::float64:
        return copied<double, double>(column, first, n, at::kDouble);
      default:
        return copied<c10::Half, c10::Half>(column, first, n, at::kHalf);
    }
  }

  int64_t integer(size_t leaf, int64_t value) const {
    auto number = number_at<int64_t>(group_.columns[leaf], value);
    require(!leaves_[leaf].is_unsigned || number >= 0, where_, leaves_[leaf].path, ": the number ",
            uint64_t(number), " is more than the largest int64");
    return number;
  }

  Tree read_value(size_t leaf) {
    const ParquetLeaf& facts = leaves_[leaf];
    const ParquetColumn& column = group_.columns[leaf];
    int64_t value = cursors_[leaf].value;
    advance(leaf);
    switch (facts.type) {
      case ParquetType::boolean:
        return number_at<uint8_t>(column, value) != 0;
      case ParquetType::int32:
        return facts.is_unsigned ? int64_t(number_at<uint32_t>(column, value))
                                 : int64_t(number_at<int32_t>(column, value));
      case ParquetType::int64:
        return integer(leaf, value);
      case ParquetType::float32:
        return double(number_at<float>(column, value));
      case ParquetType::float64:
        return number_at<double>(column, value);
      default:
        if (facts.is_float16) return double(number_at<c10::Half>(column, value));
        return std::string(column.texts[size_t(value)]);
    }
  }

  const std::string& where_;
  const std::vector<ParquetLeaf>& leaves_;
  const Group& group_;
  std::vector<Cursor> cursors_;
};

}  // namespace

struct ParquetFile::State {
  std::string where;
  InputFile file;
  ParquetMetadata metadata;
  std::vector<const ParquetNode*> selected;
  int64_t max_memory;
  std::mutex mutex;
  std::map<size_t, std::shared_ptr<Group>> groups;  // those held, by number
  uint64_t n_uses = 0;

  State(const std::string& path, int64_t max_memory)
      : where(path + ": "), file(path, "a Parquet file"), max_memory(max_memory) {}

  std::string read(int64_t offset, int64_t count) const {
    std::string bytes(size_t(count), '\0');
    file.read(bytes.data(), bytes.size(), uint64_t(offset));
    return bytes;
  }

  std::shared_ptr<Group> decoded(const ParquetRowGroup& row_group) const {
    auto group = std::make_shared<Group>();
    group->columns.resize(metadata.leaves.size());
    MemoryBudget budget(max_memory);
    for (const ParquetNode* node : selected)
      for (size_t i = node->first_leaf; i < node->end_leaf; ++i) {
        const ParquetChunk& chunk = row_group.chunks[i];
        const ParquetLeaf& leaf = metadata.leaves[i];
        group->columns[i] = decode_parquet_column(
            where + "the column " + in_quotes(leaf.path) + ": ", read(chunk.offset, chunk.n_bytes),
            chunk, leaf, row_group.n_rows, budget);
      }
    group->n_bytes = budget.used();
    return group;
  }

  // The decoded row group, which is kept as long as there is room.
  std::shared_ptr<const Group> group(size_t number) {
    std::scoped_lock lock(mutex);
    std::shared_ptr<Group>& found = groups[number];
    if (!found) {
      std::shared_ptr<Group> made;
      try {
        made = decoded(metadata.row_groups[number]);
      } catch (...) {
        groups.erase(number);
        throw;
      }
      found = made;
    }
    found->last_use = ++n_uses;
    std::shared_ptr<Group> result = found;
    drop_groups();
    return result;
  }

  void drop_groups() {
    auto use = [](const auto& entry) { return entry.second->last_use; };
    int64_t held = 0;
    for (const auto& [number, group] : groups) held += group->n_bytes;
    while (held > max_memory && groups.size() > 1) {
      auto oldest = std::ranges::min_element(groups, {}, use);
      held -= oldest->second->n_bytes;
      groups.erase(oldest);
    }
  }
};

ParquetFile::ParquetFile(ParquetFile&&) noexcept = default;
ParquetFile::~ParquetFile() = default;

ParquetFile::ParquetFile(const std::string& path,
                         const std::optional<std::vector<std::string>>& columns, int64_t max_memory)
    : state_(std::make_unique<State>(path, max_memory)) {
  const std::string& where = state_->where;
  require(max_memory > 0, where, "max_memory = ", max_memory, " must be positive");
  uint64_t size = state_->file.size();
  constexpr uint64_t tail_size = 8;  // the length of the metadata, and the magic
  require(size >= tail_size + magic.size(), where, "it has ", size,
          " bytes, too few for a Parquet file");
  std::string tail = state_->read(int64_t(size - tail_size), tail_size);
  require(!tail.ends_with(encrypted_magic), where, "it is encrypted, which is not supported");
  require(tail.ends_with(magic), where, "no Parquet file, or cut short: it does not end in ",
          magic);
  uint32_t length = 0;
  std::memcpy(&length, tail.data(), sizeof(length));
  require(length <= max_footer && length <= size - tail_size - magic.size(), where,
          "its metadata have ", length, " bytes, more than the file: it is damaged");
  state_->metadata = read_parquet_metadata(
      where, state_->read(int64_t(size - tail_size - length), length), int64_t(size));
  std::string names;
  for (const ParquetNode& node : state_->metadata.columns) {
    names += (names.empty() ? "" : ", ") + node.name;
    if (!columns || std::ranges::find(*columns, node.name) != columns->end())
      state_->selected.push_back(&node);
  }
  for (const std::string& name : columns.value_or(std::vector<std::string>{}))
    require(std::ranges::any_of(state_->selected, [&](auto* node) { return node->name == name; }),
            where, "it has no column ", in_quotes(name), ", but ", names);
}

int64_t ParquetFile::size() const {
  const auto& groups = state_->metadata.row_groups;
  return groups.empty() ? 0 : groups.back().first_row + groups.back().n_rows;
}

std::vector<std::string> ParquetFile::columns() const {
  std::vector<std::string> names;
  for (const ParquetNode* node : state_->selected) names.push_back(node->name);
  return names;
}

const std::map<std::string, std::string>& ParquetFile::metadata() const {
  return state_->metadata.texts;
}

Tree ParquetFile::row(int64_t i) const {
  require(i >= 0 && i < size(), state_->where, "there is no row ", i, ", it has ", size());
  const auto& groups = state_->metadata.row_groups;
  // The last group that starts at the row or before it; empty groups start where the next one does.
  auto after = std::ranges::upper_bound(groups, i, {}, &ParquetRowGroup::first_row);
  auto number = size_t(after - groups.begin()) - 1;
  std::shared_ptr<const Group> group = state_->group(number);
  RowReader reader(state_->where, state_->metadata.leaves, *group, state_->selected,
                   i - groups[number].first_row);
  Tree::Dict row;
  for (const ParquetNode* node : state_->selected) {
    Tree value = reader.read(*node);
    reader.check_end(*node);
    if (!value.is_none()) row[node->name] = std::move(value);
  }
  return row;
}

}  // namespace redco
