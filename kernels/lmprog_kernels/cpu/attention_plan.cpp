#include "attention_plan.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace lmk {

namespace {

constexpr int kUnitsPerThread = 4;

uint64_t low_bits(int64_t count) { return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

}  // namespace

void AttentionSchedule::build(const PlanView& plan, const AttentionShape& shape) {
    plan_ = plan;
    shape_ = shape;
    block_rows_ = std::max(1, kBlockStates / shape.group);
    clear();
    find_runs();
    for (const Run& run : runs_) group_run(run);
    for (Group& group : groups_) fill_slots(group);
    make_columns();
    split_units();
    number_partials();
    list_ahead();
}

void AttentionSchedule::clear() {
    slots.clear();
    masks.clear();
    tiles.clear();
    chunks.clear();
    units.clear();
    merged_rows.clear();
    merge_offsets.clear();
    merge_partials.clear();
    runs_.clear();
    groups_.clear();
    partials_.clear();
    run_items_.clear();
    group_items_.clear();
    open_groups_.clear();
    row_chunks_.assign(plan_.num_rows, 0);
    num_partials = 0;
}

// Sweeps over the rows where an item begins or ends.
void AttentionSchedule::find_runs() {
    std::vector<int> by_start(plan_.num_items), edges, active;
    for (int i = 0; i < plan_.num_items; i++) {
        by_start[i] = i;
        edges.push_back(plan_.items[i].row_start);
        edges.push_back(plan_.items[i].row_start + plan_.items[i].row_count);
    }
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    const auto start_of = [this](int i) { return plan_.items[i].row_start; };
    const auto position_of = [this](int i) { return plan_.items[i].key_position; };
    std::sort(by_start.begin(), by_start.end(), [&](int a, int b) { return start_of(a) < start_of(b); });
    size_t next = 0;
    for (size_t e = 0; e + 1 < edges.size(); e++) {
        const auto has_ended = [&](int i) { return start_of(i) + plan_.items[i].row_count <= edges[e]; };
        active.erase(std::remove_if(active.begin(), active.end(), has_ended), active.end());
        while (next < by_start.size() && start_of(by_start[next]) == edges[e]) active.push_back(by_start[next++]);
        if (active.empty()) continue;
        std::sort(active.begin(), active.end(), [&](int a, int b) { return position_of(a) < position_of(b); });
        const int begin = static_cast<int>(run_items_.size());
        run_items_.insert(run_items_.end(), active.begin(), active.end());
        runs_.push_back({edges[e], edges[e + 1], begin, static_cast<int>(run_items_.size())});
    }
}

AttentionSchedule::KeyRange AttentionSchedule::seen_by_row(const PlanItem& item, int row) const {
    const int64_t last = static_cast<int64_t>(row) - item.row_start + item.diagonal;
    KeyRange range{0, std::min<int64_t>(item.key_count, last + 1)};
    if (shape_.window > 0) {
        const int64_t first = static_cast<int64_t>(plan_.positions[row]) - shape_.window + 1 - item.key_position;
        range.begin = std::max<int64_t>(0, first);
    }
    return range;
}

AttentionSchedule::KeyRange AttentionSchedule::seen_by_run(const PlanItem& item, const Run& run) const {
    KeyRange range = seen_by_row(item, run.row_end - 1);
    for (int row = run.row_begin; shape_.window > 0 && row < run.row_end; row++) {
        range.begin = std::min(range.begin, seen_by_row(item, row).begin);
    }
    return range;
}

// Appends the run's rows to the groups of the chunks that it sees.
void AttentionSchedule::group_run(const Run& run) {
    int64_t seen_to = 0;
    int chunk = -1, items_begin = 0;
    for (int i = run.items_begin; i < run.items_end; i++) {
        const PlanItem& item = plan_.items[run_items_[i]];
        const KeyRange seen = seen_by_run(item, run);
        if (seen.begin >= seen.end) continue;
        const int64_t first = item.key_position + seen.begin, last = item.key_position + seen.end - 1;
        if (first < seen_to) throw std::invalid_argument("two keys at one position");
        seen_to = last + 1;
        for (int c = static_cast<int>(first / kChunk); c <= last / kChunk; c++) {
            if (c != chunk) {
                if (chunk >= 0) add_to_group(run, chunk, items_begin);
                chunk = c;
                items_begin = static_cast<int>(group_items_.size());
            }
            group_items_.push_back(run_items_[i]);
        }
    }
    if (chunk >= 0) add_to_group(run, chunk, items_begin);
}

// The chunk's items are the tail of group_items_. Rows join the group of the rows before them if it has the same.
void AttentionSchedule::add_to_group(const Run& run, int chunk, int items_begin) {
    for (int row = run.row_begin; row < run.row_end; row++) row_chunks_[row]++;
    if (static_cast<int>(open_groups_.size()) <= chunk) open_groups_.resize(chunk + 1, -1);
    const int items_end = static_cast<int>(group_items_.size());
    if (open_groups_[chunk] >= 0) {
        Group& open = groups_[open_groups_[chunk]];
        const auto items = group_items_.begin();
        if (open.row_end == run.row_begin && std::equal(items + open.items_begin, items + open.items_end,
                                                        items + items_begin, items + items_end)) {
            open.row_end = run.row_end;
            group_items_.resize(items_begin);
            return;
        }
    }
    open_groups_[chunk] = static_cast<int>(groups_.size());
    groups_.push_back({run.row_begin, run.row_end, chunk, items_begin, items_end, 0});
}

// One slot per position of the chunk. Positions without a key get a slot that has one: never garbage, always masked.
void AttentionSchedule::fill_slots(Group& group) {
    group.slots = static_cast<int>(slots.size());
    slots.resize(slots.size() + kChunk, -1);
    int32_t* out = slots.data() + group.slots;
    const int64_t start = static_cast<int64_t>(group.chunk) * kChunk;
    int32_t valid = -1;
    for (int i = group.items_begin; i < group.items_end; i++) {
        const PlanItem& item = plan_.items[group_items_[i]];
        const int64_t begin = std::max<int64_t>(start, item.key_position);
        const int64_t end = std::min<int64_t>(start + kChunk, static_cast<int64_t>(item.key_position) + item.key_count);
        const int32_t* keys = plan_.key_slots + item.key_start;
        for (int64_t p = begin; p < end; p++) out[p - start] = keys[p - item.key_position];
        valid = keys[begin - item.key_position];
    }
    for (int i = 0; i < kChunk; i++) {
        if (out[i] < 0) out[i] = valid;
    }
}

// Groups of the same rows make a column of chunks; columns are cut into blocks of rows.
void AttentionSchedule::make_columns() {
    std::sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) {
        return std::tie(a.row_begin, a.row_end, a.chunk) < std::tie(b.row_begin, b.row_end, b.chunk);
    });
    size_t end = 0;
    for (size_t begin = 0; begin < groups_.size(); begin = end) {
        const Group& first = groups_[begin];
        for (end = begin; end < groups_.size(); end++) {
            if (groups_[end].row_begin != first.row_begin || groups_[end].row_end != first.row_end) break;
        }
        const bool whole = is_whole(begin, end);
        for (int row = first.row_begin; row < first.row_end; row += block_rows_) {
            make_block(row, std::min(first.row_end, row + block_rows_), begin, end, whole);
        }
    }
}

bool AttentionSchedule::is_whole(size_t group_begin, size_t group_end) const {
    const Group& group = groups_[group_begin];
    const int count = static_cast<int>(group_end - group_begin);
    return std::all_of(row_chunks_.begin() + group.row_begin, row_chunks_.begin() + group.row_end,
                       [count](int chunks_of_row) { return chunks_of_row == count; });
}

void AttentionSchedule::make_block(int row_begin, int row_end, size_t group_begin, size_t group_end, bool is_whole) {
    AttentionUnit unit{row_begin, row_end - row_begin, 0, shape_.kv_heads, static_cast<int>(chunks.size()), 0, is_whole,
                       0};
    for (size_t g = group_begin; g < group_end; g++) {
        make_chunk(row_begin, row_end, groups_[g]);
    }
    unit.chunk_end = static_cast<int>(chunks.size());
    for (int c = unit.chunk_begin; c < unit.chunk_end; c++) {
        unit.cost += chunk_cost(chunks[c], unit.row_count) * shape_.kv_heads;
    }
    if (unit.chunk_begin < unit.chunk_end) units.push_back(unit);
}

void AttentionSchedule::make_chunk(int row_begin, int row_end, const Group& group) {
    ChunkTiles chunk{static_cast<int>(tiles.size()), 0, group.chunk, row_end - row_begin, -1};
    for (int offset = 0; offset < kChunk; offset += kTile) {
        make_tile(row_begin, row_end, group, group.chunk * kChunk + offset);
    }
    chunk.end = static_cast<int>(tiles.size());
    for (int t = chunk.begin; t < chunk.end; t++) chunk.first_row = std::min(chunk.first_row, tiles[t].first_row);
    if (chunk.begin < chunk.end) chunks.push_back(chunk);
}

void AttentionSchedule::make_tile(int row_begin, int row_end, const Group& group, int position) {
    const int offset = position - group.chunk * kChunk;
    KeyTile tile{group.slots + offset, offset, kTile, 0, -1};
    if (!all_see(row_begin, row_end, group, position)) {
        tile.masks = static_cast<int>(masks.size());
        tile.first_row = row_end - row_begin;
        uint64_t any = 0;
        for (int row = row_end - 1; row >= row_begin; row--) {
            const uint64_t mask = mask_of(row, group, position);
            if (mask) tile.first_row = row - row_begin;
            any |= mask;
        }
        if (!any) return;
        for (int row = row_begin; row < row_end; row++) masks.push_back(mask_of(row, group, position));
        tile.count = 64 - __builtin_clzll(any);
    }
    tiles.push_back(tile);
}

bool AttentionSchedule::all_see(int row_begin, int row_end, const Group& group, int position) const {
    for (int i = group.items_begin; i < group.items_end; i++) {
        const PlanItem& item = plan_.items[group_items_[i]];
        const int64_t key = static_cast<int64_t>(position) - item.key_position;
        if (key < 0 || key + kTile > item.key_count) continue;
        for (int row = row_begin; row < row_end; row++) {
            const KeyRange seen = seen_by_row(item, row);
            if (key < seen.begin || key + kTile > seen.end) return false;
        }
        return true;
    }
    return false;
}

uint64_t AttentionSchedule::mask_of(int row, const Group& group, int position) const {
    uint64_t mask = 0;
    for (int i = group.items_begin; i < group.items_end; i++) {
        const PlanItem& item = plan_.items[group_items_[i]];
        const KeyRange seen = seen_by_row(item, row);
        const int64_t begin = std::max<int64_t>(0, item.key_position + seen.begin - position);
        const int64_t end = std::min<int64_t>(kTile, item.key_position + seen.end - position);
        if (begin < end) mask |= low_bits(end) & ~low_bits(begin);
    }
    return mask;
}

int64_t AttentionSchedule::chunk_cost(const ChunkTiles& chunk, int rows) const {
    constexpr int kRearranging = 8;  // reading a key and turning it round costs about as much as this many rows
    int64_t cost = 0;
    for (int t = chunk.begin; t < chunk.end; t++) {
        cost += tiles[t].count * ((rows - tiles[t].first_row) * shape_.group + kRearranging);
    }
    return cost;
}

void AttentionSchedule::split_units() {
    int64_t total = 0;
    for (const AttentionUnit& unit : units) total += unit.cost;
    const int64_t most = shape_.threads == 1 ? total : total / (shape_.threads * kUnitsPerThread);
    std::vector<AttentionUnit> halfway, done;
    for (const AttentionUnit& unit : units) {
        halfway.clear();
        const bool heads_first = unit.row_count * shape_.group >= kDenseStates;
        heads_first ? split_heads(unit, most, halfway) : split_chunks(unit, most, halfway);
        // parts may have unequal numbers of heads, but rows are merged for all heads or for none
        const bool merges = std::any_of(halfway.begin(), halfway.end(), [&](const AttentionUnit& part) {
            return !part.is_whole || (heads_first && is_split_at_chunks(part, most));
        });
        for (AttentionUnit& part : halfway) {
            part.is_whole = !merges;
            heads_first ? split_chunks(part, most, done) : split_heads(part, most, done);
        }
    }
    units.swap(done);
    std::stable_sort(units.begin(), units.end(), [](const auto& a, const auto& b) { return a.cost > b.cost; });
}

bool AttentionSchedule::is_split_at_chunks(const AttentionUnit& unit, int64_t most) {
    return unit.cost > most && unit.chunk_end - unit.chunk_begin > 1;
}

void AttentionSchedule::split_chunks(const AttentionUnit& unit, int64_t most, std::vector<AttentionUnit>& out) const {
    if (!is_split_at_chunks(unit, most)) return out.push_back(unit);
    AttentionUnit part = unit;
    part.is_whole = false;
    part.cost = 0;
    for (int c = unit.chunk_begin; c < unit.chunk_end; c++) {
        const int64_t cost = chunk_cost(chunks[c], unit.row_count) * (unit.head_end - unit.head_begin);
        if (part.chunk_begin < c && part.cost + cost > most) {
            part.chunk_end = c;
            out.push_back(part);
            part.chunk_begin = c;
            part.cost = 0;
        }
        part.cost += cost;
    }
    part.chunk_end = unit.chunk_end;
    out.push_back(part);
}

void AttentionSchedule::split_heads(const AttentionUnit& unit, int64_t most, std::vector<AttentionUnit>& out) const {
    const int heads = unit.head_end - unit.head_begin;
    const int64_t wanted = most > 0 ? (unit.cost + most - 1) / most : heads;
    const int parts = static_cast<int>(std::min<int64_t>(heads, wanted));
    for (int i = 0; i < parts; i++) {
        AttentionUnit part = unit;
        part.head_begin = unit.head_begin + heads * i / parts;
        part.head_end = unit.head_begin + heads * (i + 1) / parts;
        part.cost = unit.cost * (part.head_end - part.head_begin) / heads;
        out.push_back(part);
    }
}

void AttentionSchedule::number_partials() {
    for (const AttentionUnit& unit : units) {
        for (int c = unit.chunk_begin; !unit.is_whole && c < unit.chunk_end; c++) {
            if (chunks[c].partial >= 0) continue;  // numbered for another range of heads
            chunks[c].partial = num_partials;
            for (int i = chunks[c].first_row; i < unit.row_count; i++) {
                partials_.push_back({unit.row_start + i, chunks[c].chunk, num_partials + i});
            }
            num_partials += unit.row_count;
        }
    }
    std::sort(partials_.begin(), partials_.end(), [](const Partial& a, const Partial& b) {
        return std::tie(a.row, a.chunk) < std::tie(b.row, b.chunk);
    });
    for (const Partial& partial : partials_) {
        if (merged_rows.empty() || merged_rows.back() != partial.row) {
            merged_rows.push_back(partial.row);
            merge_offsets.push_back(static_cast<int>(merge_partials.size()));
        }
        merge_partials.push_back(partial.index);
    }
    merge_offsets.push_back(static_cast<int>(merge_partials.size()));
}

// Units of many rows keep a chunk's keys in the second-level cache: they need nothing fetched. Units of some heads only
// are left out: they would share the rows of the pool with those of the other heads.
void AttentionSchedule::list_ahead() {
    ahead.resize(shape_.threads);
    for (int thread = 0; thread < shape_.threads; thread++) {
        std::vector<SlotRun>& runs = ahead[thread];
        runs.clear();
        int64_t left = shape_.rows_ahead;
        for (size_t i = thread; i < units.size() && left > 0; i += shape_.threads) {
            AttentionUnit& unit = units[i];
            const bool is_dense = unit.row_count * shape_.group >= kDenseStates;
            if (is_dense || unit.head_end - unit.head_begin < shape_.kv_heads) continue;
            const size_t before = runs.size();
            add_ahead(unit, runs);
            for (size_t run = before; run < runs.size(); run++) left -= std::max(kLeastRun, runs[run].count);
            unit.is_fetched = left >= 0;
            if (!unit.is_fetched) runs.resize(before);
        }
    }
}

void AttentionSchedule::add_ahead(const AttentionUnit& unit, std::vector<SlotRun>& runs) const {
    const size_t first = runs.size();
    for (int t = chunks[unit.chunk_begin].begin; t < chunks[unit.chunk_end - 1].end; t++) {
        for (int i = 0; i < tiles[t].count; i++) {
            const int slot = slots[tiles[t].slots + i];
            if (runs.size() > first && runs.back().begin + runs.back().count == slot) {
                runs.back().count++;
            } else {
                runs.push_back({slot, 1});
            }
        }
    }
}

}  // namespace lmk
