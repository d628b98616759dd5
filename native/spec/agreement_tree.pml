/* Logs along a tree (native/engine/agreement_tree.hpp): four ranks with an entry each, of which one hangs on another one's
 * child; and three in a row, with two entries each. `nox -s spin` sees every state of
 * check: -DRANKS=4 -DLENGTH=1 -DDIFFERS
 * check: -DRANKS=4 -DLENGTH=1 -DJOINS
 * check: -DRANKS=4 -DLENGTH=1 -DLEAVES
 * check: -DRANKS=4 -DLENGTH=1 -DDIES
 * check: -DRANKS=3 -DLENGTH=2 -DDIFFERS -DJOINS
 *
 * What negotiation decides is a function of the logs (negotiation.pml), whatever way they take. So the tree is right if every
 * rank gets all entries of every log, each log in its order, as they are: then it decides what it would where each sends to
 * each. DIFFERS: one rank may say something else than the others. JOINS: one may join instead of its last entry, or of
 * all. LEAVES: one may leave at any time. DIES: one may die at any time.
 *
 * Checked: what a rank is told of a log is what stands there next (a wrong entry, one too early, doubled or left out is an
 * assertion); when nothing moves any more, every rank knows all that was announced; when somebody has left, the tree has
 * ended for all, and they know the same; when somebody has died, all others have failed and know who it was.
 */

#ifndef RANKS
#define RANKS 4
#endif
#ifndef LENGTH
#define LENGTH 2
#endif
/* Ranks are numbered in the order of the tree, so that each subtree is [rank, LIMIT(rank)). */
#if RANKS < 5
#define PARENT(x) (((x) == 2) -> 1 : 0)
#define LIMIT(x) (((x) == 0) -> RANKS : (((x) == 1) -> 3 : (x) + 1))
#else
#define PARENT(x) (((x) == 2 || (x) == 3) -> 1 : 0)
#define LIMIT(x) (((x) == 0) -> 5 : (((x) == 1) -> 4 : (x) + 1))
#endif
#define NOBODY RANKS
#define BIT(x) (1 << (x))

#define SAME 1   /* an entry: what all say */
#define OTHER 2  /* something else */
#define JOIN 3

mtype = { ENTRY, ALIKE, OPEN, END, LAST };

chan up[RANKS] = [14] of { mtype, byte, byte, byte, byte };    /* to the parent: kind, begin, end, position, what */
chan down[RANKS] = [14] of { mtype, byte, byte, byte, byte };  /* from it */

byte log[10];            /* what each rank announces: [rank * LENGTH + (position)], 0 behind its end */
byte announced[RANKS];
byte known[25];          /* how much a rank knows: [rank * RANKS + whose log] */
byte leaver = NOBODY;
bool told_end[RANKS];
bool ended[RANKS];
bool wants[RANKS];      /* to see what is announced though not by all */
bool dead[RANKS];
bool failed[RANKS];
byte blamed[RANKS];

/* To all children, and to this rank itself. */
inline pass_down(kind, begin, end, position, what) {
  child = me + 1;
  do
  :: child < RANKS ->
     if
     :: PARENT(child) == me -> down[child]!kind(begin, end, position, what)
     :: else
     fi;
     child++
  :: else -> break
  od
}

inline deliver_entry(begin, end, position, what) {
  each = begin;
  do
  :: each < end ->
     assert(position < announced[each] && log[each * LENGTH + (position)] == what);
     assert(known[me * RANKS + each] == position);
     known[me * RANKS + each]++;
     each++
  :: else -> break
  od
}

inline deliver_alike(position) {
  assert(position < announced[me]);
  each = 0;
  do
  :: each < RANKS ->
     assert(position < announced[each] && log[each * LENGTH + (position)] == log[me * LENGTH + (position)]);
     assert(known[me * RANKS + each] == position);
     known[me * RANKS + each]++;
     each++
  :: else -> break
  od
}

inline pass_run() {
  if
  :: me != 0 -> up[me]!ENTRY(first, at, round, value)
  :: me == 0 && first == 0 && at == RANKS -> pass_down(ALIKE, 0, 0, round, 0); deliver_alike(round)
  :: else -> pass_down(ENTRY, first, at, round, value); deliver_entry(first, at, round, value)
  fi
}

/* What is held of one position, neighbours that say the same as one. */
inline pass_round() {
  first = me;
  at = me;
  value = 0;
  do
  :: true ->
     if
     :: at < LIMIT(me) && held[round * RANKS + at] == value -> at++
     :: else ->
        if
        :: value != 0 -> pass_run()
        :: else
        fi;
        if
        :: at < LIMIT(me) -> first = at; value = held[round * RANKS + at]; at++
        :: else -> break
        fi
     fi
  od;
  at = me;
  do
  :: at < LIMIT(me) -> held[round * RANKS + at] = 0; at++
  :: else -> break
  od;
  covered[round] = 0
}

/* Up to a position; what is held before it belongs to ranks that have gone on. */
inline pass_until(position) {
  round = 0;
  do
  :: round <= position && round < LENGTH ->
     if
     :: covered[round] > 0 -> pass_round()
     :: else
     fi;
     round++
  :: else -> break
  od
}

inline hold(begin, end, position, what) {
  each = begin;
  do
  :: each < end -> held[(position) * RANKS + each] = what; each++
  :: else -> break
  od;
  covered[position] = covered[position] + (end) - (begin);
  if
  :: covered[position] == LIMIT(me) - me -> pass_until(position)
  :: else
  fi;
  if
  :: open || told_end[me] -> pass_until(LENGTH)
  :: else
  fi
}

inline be_open(shows) {
  open = shows;
  if
  :: open -> pass_until(LENGTH)
  :: else
  fi
}

inline tell_wants() {
  if
  :: !told_end[me] && told_open != (wants[me] || wanting != 0) ->
     told_open = (wants[me] || wanting != 0);
     if
     :: me != 0 -> up[me]!OPEN(told_open, 0, 0, 0)
     :: else -> pass_down(OPEN, told_open, 0, 0, 0); be_open(told_open)
     fi
  :: else
  fi
}

inline end_if_all_have() {
  if
  :: told_end[me] && !said_last && below == 0 ->
     said_last = true;
     if
     :: me != 0 -> up[me]!LAST(0, 0, 0, 0)
     :: else -> pass_down(LAST, 0, 0, 0, 0); ended[me] = true
     fi
  :: else
  fi
}

inline begin_end() {
  told_end[me] = true;
  pass_until(LENGTH);
  end_if_all_have()
}

inline ask_for_end() {
  if
  :: asked || told_end[me]
  :: else ->
     asked = true;
     if
     :: me != 0 -> up[me]!END(0, 0, 0, 0)
     :: else -> pass_down(END, 0, 0, 0, 0); begin_end()
     fi
  fi
}

inline receive_from_below(from) {
  d_step {
    up[from]?kind(x, y, position, what);
    assert(!ended[me] && (below & BIT(from)));
    if
    :: kind == ENTRY -> hold(x, y, position, what)
    :: kind == OPEN ->
       wanting = (x -> wanting | BIT(from) : wanting & (255 - BIT(from)));
       tell_wants()
    :: kind == END -> ask_for_end()
    :: kind == LAST -> assert(told_end[me]); below = below & (255 - BIT(from)); pass_until(LENGTH); end_if_all_have()
    fi;
    kind = 0; x = 0; y = 0; position = 0; what = 0; first = 0; at = 0; round = 0; value = 0; each = 0; child = 0
  }
}

inline receive_from_above() {
  d_step {
    down[me]?kind(x, y, position, what);
    assert(!ended[me]);
    pass_down(kind, x, y, position, what);
    if
    :: kind == ENTRY -> deliver_entry(x, y, position, what)
    :: kind == ALIKE -> deliver_alike(position)
    :: kind == OPEN -> be_open(x)
    :: kind == END -> begin_end()
    :: kind == LAST -> assert(said_last); ended[me] = true
    fi;
    kind = 0; x = 0; y = 0; position = 0; what = 0; first = 0; at = 0; round = 0; value = 0; each = 0; child = 0
  }
}

#define RUNS (!dead[me] && !failed[me])
#define HAS_JOINED (announced[me] > 0 && log[me * LENGTH + announced[me] - 1] == JOIN)
#define HAS_MORE (announced[me] < LENGTH && log[me * LENGTH + announced[me]] != 0)
#define WAITS (known[me * RANKS + me] < announced[me])
/* One rank may lose its patience at any time, the others when nothing else moves. */
#define IS_IMPATIENT (me == 2 || timeout)
#define LOST(x) ((x) != me && (dead[x] || failed[x]) && ((x) == PARENT(me) || PARENT(x) == me))

proctype Rank(byte me) {
  byte held[10];     /* [position * RANKS + rank], 0: nothing */
  byte covered[LENGTH];
  byte below;        /* bit set of the children from which more may come */
  byte wanting;      /* ... of those that want the tree to be open */
  bool told_open, open, asked, said_last;
  byte x, y, position, what, first, at, round, value, each, child;
  mtype kind;

  d_step {
    child = 1;
    do
    :: child < RANKS -> below = (PARENT(child) == me && child != me -> below | BIT(child) : below); child++
    :: else -> break
    od;
    child = 0
  }
end_rank:
  do
  :: d_step { RUNS && HAS_MORE && !told_end[me] ->
       announced[me]++;
       if
       :: HAS_JOINED -> wants[me] = true; tell_wants()
       :: else
       fi;
       hold(me, me + 1, announced[me] - 1, log[me * LENGTH + announced[me] - 1]);
       first = 0; at = 0; round = 0; value = 0; each = 0; child = 0
     }
  :: RUNS && me != 1 && PARENT(1) == me && nempty(up[1]) -> receive_from_below(1)
  :: RUNS && me != 2 && PARENT(2) == me && nempty(up[2]) -> receive_from_below(2)
#if RANKS > 3
  :: RUNS && me != 3 && PARENT(3) == me && nempty(up[3]) -> receive_from_below(3)
#endif
#if RANKS > 4
  :: RUNS && me != 4 && PARENT(4) == me && nempty(up[4]) -> receive_from_below(4)
#endif
  :: RUNS && nempty(down[me]) -> receive_from_above()
  /* It has waited for long, or no longer waits. */
  :: atomic { RUNS && WAITS && !wants[me] && !told_end[me] && IS_IMPATIENT -> wants[me] = true; tell_wants(); each = 0; child = 0; first = 0; at = 0; round = 0; value = 0 }
  :: d_step { RUNS && !WAITS && wants[me] && !HAS_JOINED && !told_end[me] -> wants[me] = false; tell_wants(); each = 0; child = 0 }
  :: d_step { RUNS && leaver == me && !asked && !told_end[me] -> ask_for_end(); each = 0; child = 0; first = 0; at = 0; round = 0; value = 0 }
  /* A neighbour is dead, or says that the job has failed. */
#if defined(DIES)
  :: d_step { RUNS && LOST(0) -> failed[me] = true; blamed[me] = (dead[0] -> 0 : blamed[0]) }
  :: d_step { RUNS && LOST(1) -> failed[me] = true; blamed[me] = (dead[1] -> 1 : blamed[1]) }
  :: d_step { RUNS && LOST(2) -> failed[me] = true; blamed[me] = (dead[2] -> 2 : blamed[2]) }
#if RANKS > 3
  :: d_step { RUNS && LOST(3) -> failed[me] = true; blamed[me] = (dead[3] -> 3 : blamed[3]) }
#endif
#if RANKS > 4
  :: d_step { RUNS && LOST(4) -> failed[me] = true; blamed[me] = (dead[4] -> 4 : blamed[4]) }
#endif
#endif
  od
}

#define SETTLED(x) (dead[x] || failed[x] || told_end[x] || wants[x] || known[(x) * RANKS + (x)] == announced[x])

/* When nothing moves any more. */
proctype Judge() {
  byte a, b, who = NOBODY;
#ifdef DIES
  if
  :: who = 0; dead[0] = true
  :: who = 1; dead[1] = true
  :: who = 2; dead[2] = true
  :: skip
  fi;
#endif
  timeout && SETTLED(0) && SETTLED(1) && SETTLED(2) && SETTLED(RANKS - 2) && SETTLED(RANKS - 1);
  d_step {
    a = 0;
    do
    :: a < RANKS ->
       if
       :: who != NOBODY -> assert(dead[a] || (failed[a] && blamed[a] == who))
       :: else ->
          assert(leaver == NOBODY || ended[a]);
          assert(leaver != NOBODY || announced[a] == LENGTH || log[a * LENGTH + announced[a]] == 0);
          b = 0;
          do
          :: b < RANKS -> assert(known[a * RANKS + b] == announced[b]); b++
          :: else -> break
          od
       fi;
       a++
    :: else -> break
    od
  }
}

init {
  byte who;
  atomic {
    who = 0;
    do
    :: who < RANKS * LENGTH -> log[who] = SAME; who++
    :: else -> break
    od;
#ifdef DIFFERS
    if
    :: log[1] = OTHER            /* the root, or its second entry */
    :: log[LENGTH] = OTHER       /* the rank with others below it */
    :: log[2 * LENGTH] = OTHER   /* below it */
    :: skip
    fi;
#endif
#ifdef JOINS
    if
    :: who = 0
    :: who = 1
    :: who = 2
    fi;
    if
    :: log[who * LENGTH + LENGTH - 1] = JOIN
    :: LENGTH > 1 -> log[who * LENGTH] = JOIN; log[who * LENGTH + 1] = 0
    :: skip
    fi;
#endif
#ifdef LEAVES
    if
    :: leaver = 0
    :: leaver = 1
    :: leaver = 2
    fi;
#endif
    who = 0;
    do
    :: who < RANKS -> run Rank(who); who++
    :: else -> break
    od;
    run Judge()
  }
}
