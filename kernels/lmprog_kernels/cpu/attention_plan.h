// From the items of an attention plan to units of work for threads.
//
// A row's keys are cut into chunks at absolute positions (multiples of kChunk), whatever items they come from. Within a
// chunk a row's softmax state is computed from scratch, and the states of its chunks are merged in the order of
// positions. So a row's result has the same bits in every plan that shows it the same keys: alone or batched, cached or
// computed, in one step or in pieces, with a shared prefix as one item or as many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lmk {

constexpr int kTile = 64;    // keys per pass of the kernel; one bit each in a mask
constexpr int kChunk = 256;  // keys per softmax state
constexpr int kDenseStates = 16;  // from here on a unit is bound by arithmetic, not by reading keys
constexpr int kBlockStates = 66;  // rows x query heads per kv head of a block, for which K and V are rearranged once

struct PlanItem {
    int32_t row_start, row_count, key_start, key_count, diagonal, key_position;
};

struct PlanView {
    const PlanItem* items;
    int num_items;
    const int32_t* key_slots;
    const int32_t* positions;  // [num_rows]
    int num_rows;
};

struct AttentionShape {
    int window;    // tokens, or 0 for all
    int group;     // query heads per kv head
    int kv_heads;
    int threads;
    int64_t rows_ahead;  // of the pool that each thread can fetch before attention begins
};

// Consecutive slots.
struct SlotRun {
    int begin, count;
};
constexpr int kLeastRun = 32;  // slots that fetching a run takes the time of, if it is shorter

// Up to kTile keys at consecutive positions.
struct KeyTile {
    int slots;      // index of the first of kTile slots; those of keys that nobody sees are valid ones all the same
    int offset;     // of the first key within its chunk
    int count;      // keys to compute
    int first_row;  // rows of the block before this one see none of them
    int masks;      // index of the masks of the block's rows, bit j for key j; -1: every row sees all kTile
};

// The tiles of one chunk that a block of rows sees.
struct ChunkTiles {
    int begin, end;
    int chunk;      // absolute number
    int first_row;  // rows of the block before this one see nothing of it
    int partial;    // number of the first row's state if states are stored and merged later, else -1
};

// What one thread does at a time: `row_count` rows by some kv heads by some chunks.
struct AttentionUnit {
    int row_start, row_count;
    int head_begin, head_end;    // kv heads
    int chunk_begin, chunk_end;  // in `chunks`
    bool is_whole;               // all chunks of its rows: results go straight out
    int64_t cost;
    bool is_fetched = false;  // its keys are in `ahead`
};

class AttentionSchedule {
   public:
    std::vector<int32_t> slots;
    std::vector<uint64_t> masks;
    std::vector<KeyTile> tiles;
    std::vector<ChunkTiles> chunks;
    std::vector<AttentionUnit> units;  // dearest first; of T threads, thread t begins with t, t + T, ...
    std::vector<std::vector<SlotRun>> ahead;  // by thread: the slots that its units read, as many as it can fetch
    int num_partials = 0;
    std::vector<int> merged_rows;     // rows whose chunks are spread over several units
    std::vector<int> merge_offsets;   // [merged_rows + 1] into merge_partials
    std::vector<int> merge_partials;  // numbers of states, by position

    // Throws std::invalid_argument if a row would see two keys at one position.
    void build(const PlanView& plan, const AttentionShape& shape);

   private:
    // Rows that are in the same items, and these items by position.
    struct Run {
        int row_begin, row_end;
        int items_begin, items_end;  // in run_items_
    };
    // Rows that draw the keys of one chunk from the same items.
    struct Group {
        int row_begin, row_end, chunk;
        int items_begin, items_end;  // in group_items_
        int slots;                   // of the chunk's first position
    };
    struct Partial {
        int row, chunk, index;
    };
    // Keys j of an item: begin <= j < end.
    struct KeyRange {
        int64_t begin, end;
    };

    void clear();
    void find_runs();
    void group_run(const Run& run);
    void add_to_group(const Run& run, int chunk, int items_begin);
    void fill_slots(Group& group);
    void make_columns();
    bool is_whole(size_t group_begin, size_t group_end) const;
    void make_block(int row_begin, int row_end, size_t group_begin, size_t group_end, bool is_whole);
    void make_chunk(int row_begin, int row_end, const Group& group);
    void make_tile(int row_begin, int row_end, const Group& group, int position);
    bool all_see(int row_begin, int row_end, const Group& group, int position) const;
    void split_units();
    static bool is_split_at_chunks(const AttentionUnit& unit, int64_t most);
    void split_chunks(const AttentionUnit& unit, int64_t most, std::vector<AttentionUnit>& out) const;
    void split_heads(const AttentionUnit& unit, int64_t most, std::vector<AttentionUnit>& out) const;
    int64_t chunk_cost(const ChunkTiles& chunk, int rows) const;
    void number_partials();
    void list_ahead();
    void add_ahead(const AttentionUnit& unit, std::vector<SlotRun>& runs) const;
    KeyRange seen_by_row(const PlanItem& item, int row) const;
    KeyRange seen_by_run(const PlanItem& item, const Run& run) const;
    uint64_t mask_of(int row, const Group& group, int position) const;

    PlanView plan_{};
    AttentionShape shape_{};
    int block_rows_ = 1;
    std::vector<Run> runs_;
    std::vector<Group> groups_;
    std::vector<Partial> partials_;
    std::vector<int> run_items_, group_items_, open_groups_, row_chunks_;
};

}  // namespace lmk
