// SPDX-License-Identifier: Apache-2.0 OR MIT
// The containers of PULSE's Table 1 (but Google's, which no distribution has), made by their own libraries in one arena.
//
// Flow     layouts FILE: the arena's bytes go to FILE; to stdout its address, then per question a line
//          `program start found offset=value …`: where the walk starts, what the library finds (`-`: nothing), the scratchpad
// Layout   all pointers are those of this process: the walk takes them for global addresses
#include <sstream>
#include <string>
#define private public
#define protected public
#include <boost/bimap.hpp>
#include <boost/bimap/unordered_set_of.hpp>
#include <boost/unordered_map.hpp>
#include <boost/unordered_set.hpp>
#undef private
#undef protected
#include <boost/intrusive/avl_set.hpp>
#include <boost/intrusive/sg_set.hpp>
#include <boost/intrusive/splay_set.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <forward_list>
#include <list>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

typedef uint64_t u64;
namespace bi = boost::intrusive;

alignas(4096) static char arena[8 << 20];
static size_t used = 4096;

template <typename T> struct Arena {
    typedef T value_type;
    template <typename U> struct rebind { typedef Arena<U> other; };
    Arena() {}
    template <typename U> Arena(const Arena<U> &) {}
    T *allocate(size_t n)
    {
        used = (used + 63) & ~size_t(63);
        T *at = reinterpret_cast<T *>(arena + used);
        used += n * sizeof(T);
        if (used > sizeof arena - 4096)
            abort();
        return at;
    }
    void deallocate(T *, size_t) {}
    template <typename U> bool operator==(const Arena<U> &) const { return true; }
    template <typename U> bool operator!=(const Arena<U> &) const { return false; }
};
template <typename T> T *make() { return new (Arena<T>().allocate(1)) T(); }

static u64 address(const void *at) { return reinterpret_cast<u64>(at); }
static u64 word(u64 at) { return *reinterpret_cast<u64 *>(at); }

static void ask(const char *name, u64 start, bool found, u64 what, const std::vector<std::pair<int, u64>> &scratch)
{
    if (start == 0)
        return; // what is empty is not walked
    printf("%s %lx ", name, start);
    if (found)
        printf("%lx", what);
    else
        printf("-");
    for (auto &pair : scratch)
        printf(" %d=%lx", pair.first, pair.second);
    printf("\n");
}

template <typename Hook> struct Item : Hook {
    u64 key, value;
    bool operator<(const Item &other) const { return key < other.key; }
};
struct ByKey {
    typedef u64 type;
    template <typename T> u64 operator()(const T &item) const { return item.key; }
};

// libstdc++ trees and Boost's: the header's parent is the root.
static void tree(const char *name, u64 root, u64 key, bool found, u64 what)
{
    ask(name, root, found, what, {{0, key}, {8, 1}, {40, root}});
}

int main(int, char **arguments)
{
    const u64 COUNT = 300;
    std::vector<u64> keys;
    for (u64 i = 0; i < COUNT; i++)
        keys.push_back(i * 0x9e3779b97f4a7c15ull % 100000 * 2);
    printf("%lx\n", address(arena));

    auto &list = *make<std::list<u64, Arena<u64>>>();
    auto &forward = *make<std::forward_list<u64, Arena<u64>>>();
    auto &map = *make<std::map<u64, u64, std::less<u64>, Arena<std::pair<const u64, u64>>>>();
    auto &multimap = *make<std::multimap<u64, u64, std::less<u64>, Arena<std::pair<const u64, u64>>>>();
    auto &set = *make<std::set<u64, std::less<u64>, Arena<u64>>>();
    auto &multiset = *make<std::multiset<u64, std::less<u64>, Arena<u64>>>();
    auto &unordered =
        *make<std::unordered_map<u64, u64, std::hash<u64>, std::equal_to<u64>, Arena<std::pair<const u64, u64>>>>();
    auto &boost_map =
        *make<boost::unordered_map<u64, u64, boost::hash<u64>, std::equal_to<u64>, Arena<std::pair<const u64, u64>>>>();
    auto &boost_set = *make<boost::unordered_set<u64, boost::hash<u64>, std::equal_to<u64>, Arena<u64>>>();
    typedef boost::bimap<boost::bimaps::unordered_set_of<u64>, boost::bimaps::unordered_set_of<u64>, Arena<u64>> Bimap;
    auto &bimap = *make<Bimap>();
    typedef Item<bi::avl_set_base_hook<>> Avl;
    typedef Item<bi::bs_set_base_hook<>> Plain;
    auto &avl = *make<bi::avl_set<Avl, bi::key_of_value<ByKey>>>();
    auto &splay = *make<bi::splay_set<Plain, bi::key_of_value<ByKey>>>();
    auto &scapegoat = *make<bi::sg_set<Plain, bi::key_of_value<ByKey>>>();

    for (u64 i = 0; i < keys.size(); i++) {
        u64 key = keys[i], value = i + 7;
        list.push_back(key);
        forward.push_front(key);
        map[key] = value;
        multimap.insert({key, value});
        if (i % 3 == 0)
            multimap.insert({key, value + 1000});
        set.insert(key);
        multiset.insert(key);
        multiset.insert(key);
        unordered[key] = value;
        boost_map[key] = value;
        boost_set.insert(key);
        bimap.insert(Bimap::value_type(key, value));
        auto &one = *make<Avl>();
        one.key = key, one.value = value;
        avl.insert(one);
        auto &two = *make<Plain>();
        two.key = key, two.value = value;
        splay.insert(two);
        auto &three = *make<Plain>();
        three.key = key, three.value = value;
        scapegoat.insert(three);
    }

    for (u64 i = 0; i < keys.size() * 2; i++) {
        u64 key = keys[i / 2] + i % 2;
        {
            auto at = std::find(list.begin(), list.end(), key);
            u64 first = address(&*list.begin()) - 16, end = address(list.end()._M_node);
            ask("stl_list", first, at != list.end(), at == list.end() ? 0 : address(at._M_node), {{0, key}, {8, end}, {24, first}});
        }
        {
            auto at = std::find(forward.begin(), forward.end(), key);
            u64 first = address(&*forward.begin()) - 8;
            ask("stl_forward_list", first, at != forward.end(), at == forward.end() ? 0 : address(at._M_node), {{0, key}, {8, 0}, {24, first}});
        }
        u64 root = word(address(map.end()._M_node) + 8);
        tree("stl_map", root, key, map.count(key), map.count(key) ? map.find(key)->second : 0);
        root = word(address(multimap.end()._M_node) + 8);
        tree("stl_multimap", root, key, multimap.count(key), multimap.count(key) ? multimap.lower_bound(key)->second : 0);
        tree("stl_set", word(address(set.end()._M_node) + 8), key, set.count(key), key);
        tree("stl_multiset", word(address(multiset.end()._M_node) + 8), key, multiset.count(key), key);
        // The hook is the item's start, and the end is the header, whose parent is the root.
        tree("boost_avl", word(address(avl.end().pointed_node())), key, avl.count(key), avl.count(key) ? avl.find(key)->value : 0);
        const auto &still = splay;
        tree("boost_splay", word(address(splay.end().pointed_node())), key, still.count(key), still.count(key) ? still.find(key)->value : 0);
        tree("boost_scapegoat", word(address(scapegoat.end().pointed_node())), key, scapegoat.count(key), scapegoat.count(key) ? scapegoat.find(key)->value : 0);
        {
            u64 bucket = unordered.bucket(key), first = 0;
            if (unordered.begin(bucket) != unordered.end(bucket))
                first = address(&*unordered.begin(bucket)) - 8;
            bool found = unordered.count(key);
            ask("stl_unordered_map", first, found, found ? unordered[key] : 0, {{0, key}, {8, bucket}, {32, unordered.bucket_count()}, {40, first}});
        }
        {
            u64 bucket = boost_map.bucket(key), first = 0;
            if (boost_map.begin(bucket) != boost_map.end(bucket))
                first = address(&*boost_map.begin(bucket)) - 16;
            bool found = boost_map.count(key);
            ask("boost_unordered_map", first, found, found ? boost_map[key] : 0, {{0, key}, {8, bucket}, {40, first}});
        }
        {
            u64 bucket = boost_set.bucket(key), first = 0;
            if (boost_set.begin(bucket) != boost_set.end(bucket))
                first = address(&*boost_set.begin(bucket)) - 16;
            ask("boost_unordered_set", first, boost_set.count(key), key, {{0, key}, {8, bucket}, {40, first}});
        }
        {
            auto &left = bimap.left.base();
            u64 bucket = left.bucket(key), first = 0;
            first = word(address(&*left.buckets.at(bucket)));
            bool found = bimap.left.count(key);
            ask("boost_bimap", first, found, found ? bimap.left.find(key)->second : 0, {{0, key}, {8, bucket}, {40, first}});
        }
    }

    FILE *file = fopen(arguments[1], "wb");
    if (!file || fwrite(arena, 1, sizeof arena, file) != sizeof arena || fclose(file))
        return 1;
}
