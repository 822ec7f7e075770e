// The metadata of a Parquet file: its columns, and where their values are.

#include "parquet_schema.h"

#include "thrift.h"

#include <redco/error.h>

#include <set>
#include <utility>

namespace redco::io {

namespace {

constexpr int max_schema_depth = 32;

enum Repetition : uint8_t { required = 0, optional = 1, repeated = 2 };

// An entry of the schema, which lists the tree's nodes from the root, parents before children.
struct Element {
  std::string name;
  int64_t type = -1, type_length = 0, repetition = required, n_children = 0, converted = -1;
  int64_t logical = 0;  // the number of the logical type's field
  bool is_signed = true;
};

// Numbers of the logical types, and of the older converted ones.
constexpr int64_t logical_map = 2, logical_list = 3, logical_decimal = 5, logical_integer = 10,
                  logical_float16 = 15;
constexpr int64_t converted_map = 1, converted_map_entry = 2, converted_list = 3,
                  converted_decimal = 5, converted_uint8 = 11, converted_uint64 = 14;

void read_logical_type(ThriftReader& in, Element& element) {
  in.read_struct([&](int64_t number) {
    element.logical = number;
    if (number != logical_integer) return;
    in.read_struct([&](int64_t field) {
      if (field == 2) element.is_signed = in.read_boolean();
    });
  });
}

Element read_element(ThriftReader& in) {
  Element element;
  in.read_struct([&](int64_t number) {
    switch (number) {
      case 1:
        element.type = in.read_integer();
        break;
      case 2:
        element.type_length = in.read_integer();
        break;
      case 3:
        element.repetition = in.read_integer();
        break;
      case 4:
        element.name = in.read_bytes();
        break;
      case 5:
        element.n_children = in.read_integer();
        break;
      case 6:
        element.converted = in.read_integer();
        break;
      case 10:
        read_logical_type(in, element);
        break;
      default:
        break;
    }
  });
  return element;
}

// Makes the tree of nodes.
class Schema {
 public:
  Schema(const std::string& where, std::vector<Element> elements, ParquetMetadata& result)
      : where_(where), elements_(std::move(elements)), result_(result) {}

  void read() {
    require(!elements_.empty(), where_, "it has no schema");
    int64_t n_columns = elements_[0].n_children;
    for (int64_t i = 0; i < n_columns; ++i) result_.columns.push_back(node(0, 0, "", 0));
    check_names(result_.columns, "");
    require(next_ == elements_.size(), where_, "its schema has nodes outside of the tree");
  }

 private:
  // Fields of one name would hide each other.
  void check_names(const std::vector<ParquetNode>& nodes, const std::string& of) const {
    std::set<std::string> names;
    for (const ParquetNode& node : nodes)
      require(names.insert(node.name).second, where_, "the name ", node.name, of,
              " is there twice");
  }

  const Element& take(int depth) {
    require(depth <= max_schema_depth, where_, "its schema is nested more than ", max_schema_depth,
            " deep");
    require(next_ < elements_.size(), where_, "its schema is cut short");
    return elements_[next_++];
  }

  // The next node with its subtree, below a node of these levels.
  ParquetNode node(int definition, int repetition, const std::string& above, int depth) {
    const Element& element = take(depth);
    if (element.repetition == repeated) {  // a list that is never null
      ParquetNode result = new_list(element.name, definition, repetition);
      result.children.push_back(content(element, definition + 1, repetition + 1, above, depth));
      return finished(std::move(result));
    }
    require(element.repetition == required || element.repetition == optional, where_, "the column ",
            element.name, " has an unknown repetition");
    return content(element, definition + int(element.repetition), repetition, above, depth);
  }

  ParquetNode new_list(const std::string& name, int definition, int repetition) const {
    ParquetNode list;
    list.name = name;
    list.kind = ParquetNode::list;
    list.definition = definition;
    list.element_definition = definition + 1;
    list.repetition = repetition + 1;
    list.first_leaf = result_.leaves.size();
    return list;
  }

  ParquetNode finished(ParquetNode node) const {
    node.end_leaf = result_.leaves.size();
    return node;
  }

  // Returns a node without its own repetition, at these levels.
  ParquetNode content(const Element& element, int definition, int repetition,
                      const std::string& above, int depth) {
    std::string path = above.empty() ? element.name : above + "." + element.name;
    if (element.n_children == 0) return leaf(element, definition, repetition, path);
    require(element.n_children > 0 && element.type < 0, where_, "the column ", path,
            " is a group with a type or a wrong number of children");
    bool is_list = element.logical == logical_list || element.logical == logical_map ||
                   element.converted == converted_list || element.converted == converted_map ||
                   element.converted == converted_map_entry;
    if (is_list && element.n_children == 1 && next_ < elements_.size() &&
        elements_[next_].repetition == repeated)
      return list(element.name, definition, repetition, path, depth);
    ParquetNode result;
    result.name = element.name;
    result.kind = ParquetNode::structure;
    result.definition = definition;
    result.first_leaf = result_.leaves.size();
    for (int64_t i = 0; i < element.n_children; ++i)
      result.children.push_back(node(definition, repetition, path, depth + 1));
    check_names(result.children, " of the column " + path);
    return finished(std::move(result));
  }

  // A list or map of two or three levels: a group with a repeated child. This child is the element,
  // or has the element as its only child ("Lists" in LogicalTypes.md of parquet-format).
  ParquetNode list(const std::string& name, int definition, int repetition, const std::string& path,
                   int depth) {
    ParquetNode result = new_list(name, definition, repetition);
    const Element& child = take(depth + 1);
    bool is_element =
        child.n_children != 1 || child.name == "array" || child.name.ends_with("_tuple");
    result.children.push_back(is_element
                                  ? content(child, definition + 1, repetition + 1, path, depth + 1)
                                  : node(definition + 1, repetition + 1, path, depth + 2));
    return finished(std::move(result));
  }

  ParquetNode leaf(const Element& element, int definition, int repetition,
                   const std::string& path) {
    require(element.type >= 0 && element.type <= int64_t(ParquetType::fixed_bytes), where_,
            "the column ", path, " has no known type");
    ParquetLeaf leaf;
    leaf.path = path;
    leaf.type = ParquetType(element.type);
    leaf.max_definition = definition;
    leaf.max_repetition = repetition;
    constexpr size_t widths[] = {1, 4, 8, 12, 4, 8, 0, 0};
    leaf.width = widths[element.type];
    leaf.is_unsigned =
        element.logical == logical_integer
            ? !element.is_signed
            : element.converted >= converted_uint8 && element.converted <= converted_uint64;
    leaf.is_float16 = leaf.type == ParquetType::fixed_bytes && element.logical == logical_float16;
    if (leaf.type == ParquetType::fixed_bytes) {
      require(element.type_length > 0 && element.type_length <= 1 << 20, where_, "the column ",
              path, " has values of ", element.type_length, " bytes");
      leaf.width = size_t(element.type_length);
      require(!leaf.is_float16 || leaf.width == 2, where_, "the column ", path,
              " has 16-bit numbers of another size");
    }
    if (leaf.type == ParquetType::int96) leaf.unread = "96-bit times";
    if (element.logical == logical_decimal || element.converted == converted_decimal)
      leaf.unread = "decimals";
    ParquetNode result;
    result.name = element.name;
    result.definition = definition;
    result.first_leaf = result_.leaves.size();
    result_.leaves.push_back(std::move(leaf));
    return finished(std::move(result));
  }

  const std::string& where_;
  std::vector<Element> elements_;
  size_t next_ = 1;  // after the root
  ParquetMetadata& result_;
};

struct ChunkMetadata : ParquetChunk {
  int64_t type = -1, data_offset = -1, dictionary_offset = -1;
};

ChunkMetadata read_chunk(const std::string& where, ThriftReader& in) {
  ChunkMetadata chunk;
  bool has_metadata = false;
  in.read_struct([&](int64_t number) {
    require(number != 1, where, "its columns are in other files, which is not supported");
    require(number != 8 && number != 9, where, "it is encrypted, which is not supported");
    if (number != 3) return;
    has_metadata = true;
    in.read_struct([&](int64_t field) {
      switch (field) {
        case 1:
          chunk.type = in.read_integer();
          break;
        case 4:
          chunk.codec = in.read_integer();
          break;
        case 5:
          chunk.n_values = in.read_integer();
          break;
        case 7:
          chunk.n_bytes = in.read_integer();
          break;
        case 9:
          chunk.data_offset = in.read_integer();
          break;
        case 11:
          chunk.dictionary_offset = in.read_integer();
          break;
        default:
          break;
      }
    });
  });
  require(has_metadata, where, "a column of a row group has no metadata");
  // The dictionary is optional, and some writers give 0 for none.
  bool has_dictionary = chunk.dictionary_offset > 0 && chunk.dictionary_offset < chunk.data_offset;
  chunk.offset = has_dictionary ? chunk.dictionary_offset : chunk.data_offset;
  return chunk;
}

ParquetRowGroup read_row_group(const std::string& where, ThriftReader& in,
                               const std::vector<ParquetLeaf>& leaves, int64_t file_size) {
  ParquetRowGroup group;
  in.read_struct([&](int64_t number) {
    if (number == 3) group.n_rows = in.read_integer();
    if (number != 1) return;
    in.read_list([&] {
      ChunkMetadata chunk = read_chunk(where, in);
      size_t i = group.chunks.size();
      require(i < leaves.size() && chunk.type == int64_t(leaves[i].type), where,
              "a row group has another column ", i + 1, " than the schema");
      require(chunk.n_values >= 0 && chunk.offset >= 0 && chunk.n_bytes >= 0 &&
                  chunk.offset <= file_size && chunk.n_bytes <= file_size - chunk.offset,
              where, "the column ", leaves[i].path, " is outside of the file: it is damaged");
      group.chunks.push_back(chunk);
    });
  });
  require(group.chunks.size() == leaves.size(), where, "a row group has ", group.chunks.size(),
          " columns, the schema ", leaves.size());
  require(group.n_rows >= 0, where, "a row group has ", group.n_rows, " rows");
  return group;
}

}  // namespace

ParquetMetadata read_parquet_metadata(const std::string& where, std::string_view bytes,
                                      int64_t file_size) {
  ParquetMetadata result;
  ThriftReader in(where, bytes);
  std::vector<Element> elements;
  int64_t n_rows = 0, end = 0;
  in.read_struct([&](int64_t number) {
    switch (number) {
      case 2:
        require(result.leaves.empty(), where, "it has two schemas");
        in.read_list([&] { elements.push_back(read_element(in)); });
        Schema(where, std::move(elements), result).read();
        break;
      case 3:
        n_rows = in.read_integer();
        break;
      case 4:
        require(!result.leaves.empty(), where, "it has row groups without a schema");
        in.read_list([&] {
          ParquetRowGroup group = read_row_group(where, in, result.leaves, file_size);
          group.first_row = end;
          constexpr int64_t most = int64_t{1} << 52;
          require(group.n_rows <= most - end, where, "it has more than ", most, " rows");
          end += group.n_rows;
          result.row_groups.push_back(std::move(group));
        });
        break;
      case 5:
        in.read_list([&] {
          std::string key, value;
          in.read_struct([&](int64_t field) {
            if (field == 1) key = in.read_bytes();
            if (field == 2) value = in.read_bytes();
          });
          result.texts[key] = std::move(value);
        });
        break;
      case 8:
        fail(where, "it is encrypted, which is not supported");
      default:
        break;
    }
  });
  require(n_rows == end, where, "it has ", n_rows, " rows, its row groups ", end);
  return result;
}

}  // namespace redco::io
