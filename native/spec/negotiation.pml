/* Negotiation by replicated logs (native/engine/negotiation.hpp), and membership: three ranks, two or three tensors, one
 * crash. `nox -s spin` sees every state of
 * check: -DTENSORS=2
 * check: -DTENSORS=3
 *
 * Every rank announces its tensors in an order of its own choice; each announcement goes to each other rank over an ordered
 * channel. A rank decides round k once it has entry k of every log, and releases a tensor when all logs up to there hold
 * it. A rank that waits fills its log with no-ops where others' are longer. At any moment one rank may crash; the others
 * find its channel closed, and fail what is pending.
 *
 * Checked: every survivor ends (no invalid end state), all ranks release in the same order what both release, a tensor is
 * released at most once and only after every rank has announced it, and without a crash every tensor is released.
 */

#define RANKS 3
#ifndef TENSORS
#define TENSORS 2
#endif
#define NOOP 3             /* an entry that is no tensor */
#define LENGTH 6           /* a log is never longer: the tensors, and fills */
#define BIT(x) (1 << (x))
/* With three tensors a rank reads what has come once it has submitted all of its own. Nothing is lost by that: what it
 * submits does not depend on what it has read, and a fill is never due earlier. With two tensors it may read at any time. */
#if TENSORS > 2
#define READS(me) (announced[me] == ALL)
#else
#define READS(me) true
#endif
#define ALL (BIT(TENSORS) - 1)

chan link[9] = [LENGTH] of { byte };  /* [from * 3 + to] */

byte announced[RANKS];     /* bit set of the tensors that a rank has announced */
byte order[9];             /* [rank * 3 + i]: the i-th tensor that the rank released */
byte released[RANKS];      /* how many */
bool done[RANKS];          /* all released, or failed */
bool failed[RANKS];
bool dead[RANKS];
byte crashes = 0;

inline append(me, entry) {
  d_step {
    log[me * LENGTH + length[me]] = entry;
    length[me]++;
    to = 0;
    do
    :: to < RANKS ->
       if
       :: to != me && !dead[to] -> link[me * 3 + to]!entry
       :: else
       fi;
       to++
    :: else -> break
    od;
    to = 0
  }
}

inline receive(me, peer) {
  d_step {
    link[(peer) * 3 + me]?entry;
    log[(peer) * LENGTH + length[peer]] = entry;
    length[peer]++
  }
}

/* Every complete round, in order. */
inline decide(me) {
  d_step {
    do
    :: round < length[0] && round < length[1] && round < length[2] ->
       from = 0;
       do
       :: from < RANKS ->
          entry = log[from * LENGTH + round];
          if
          :: entry < TENSORS -> seen[from] = seen[from] | BIT(entry)
          :: else
          fi;
          from++
       :: else -> break
       od;
       /* Released in the order of the tensors: what became complete in this round. */
       entry = 0;
       do
       :: entry < TENSORS ->
          if
          :: (seen[0] & seen[1] & seen[2] & BIT(entry)) && !(mine & BIT(entry)) ->
             assert(announced[0] & announced[1] & announced[2] & BIT(entry));
             mine = mine | BIT(entry);
             order[me * 3 + released[me]] = entry;
             released[me]++
          :: else
          fi;
          entry++
       :: else -> break
       od;
       round++
    :: else -> break
    od;
    from = 0;
    entry = 0
  }
}

proctype Rank(byte me) {
  byte log[18];            /* what this rank knows of all logs: [rank * LENGTH + position] */
  byte length[RANKS];
  byte seen[RANKS];        /* tensors in the decided part of each log */
  byte mine = 0;           /* tensors released here */
  byte round = 0;
  byte entry = 0;
  byte from = 0;
  byte to = 0;

  do
  /* Submit a tensor, in any order. Tensors have no meaning of their own, so rank 0's order may be called 0, 1, 2. */
  :: atomic { announced[me] != ALL && !dead[me] ->
       if
       :: !(announced[me] & BIT(0)) -> entry = 0
       :: !(announced[me] & BIT(1)) && (me != 0 || (announced[me] & BIT(0))) -> entry = 1
       :: TENSORS > 2 && !(announced[me] & BIT(2)) && (me != 0 || (announced[me] & BIT(1))) -> entry = 2
       fi;
       announced[me] = announced[me] | BIT(entry);
       append(me, entry);
       decide(me)
     }
  /* Receive from one of the others. */
  :: atomic { !dead[me] && READS(me) && nempty(link[((me + 1) % 3) * 3 + me]) ->
       receive(me, (me + 1) % 3);
       decide(me)
     }
  :: atomic { !dead[me] && READS(me) && nempty(link[((me + 2) % 3) * 3 + me]) ->
       receive(me, (me + 2) % 3);
       decide(me)
     }
  /* Everything is submitted, this rank waits, and another log is longer: fill. */
  :: atomic { announced[me] == ALL && released[me] < TENSORS && length[me] < LENGTH && !dead[me] &&
              (length[(me + 1) % 3] > length[me] || length[(me + 2) % 3] > length[me]) ->
       append(me, NOOP);
       decide(me)
     }
  :: released[me] == TENSORS -> break
  /* The detector: a peer is dead, and everything that it sent has been read. */
  :: released[me] < TENSORS && dead[(me + 1) % 3] && empty(link[((me + 1) % 3) * 3 + me]) ->
     failed[me] = true; break
  :: released[me] < TENSORS && dead[(me + 2) % 3] && empty(link[((me + 2) % 3) * 3 + me]) ->
     failed[me] = true; break
  :: dead[me] -> goto crashed
  od;
  done[me] = true;
crashed:
  skip
}

proctype Crash() {
  byte who;
  if
  :: who = 0
  :: who = 1
  :: who = 2
  :: goto end   /* nobody */
  fi;
  atomic {
    if
    :: !done[who] -> dead[who] = true; crashes++
    :: else
    fi
  };
end:
  skip
}

/* Ranks that released something released it in the same order; without a crash all released everything. */
proctype Judge() {
  byte a, b, i;
  (dead[0] || done[0]) && (dead[1] || done[1]) && (dead[2] || done[2]);
  d_step {
    a = 0;
    do
    :: a < RANKS ->
       b = 0;
       do
       :: b < RANKS ->
          i = 0;
          do
          :: i < TENSORS ->
             if
             :: i < released[a] && i < released[b] -> assert(order[a * 3 + i] == order[b * 3 + i])
             :: else
             fi;
             i++
          :: else -> break
          od;
          b++
       :: else -> break
       od;
       assert(crashes > 0 || (released[a] == TENSORS && !failed[a]));
       a++
    :: else -> break
    od
  }
}

init {
  atomic {
    run Rank(0);
    run Rank(1);
    run Rank(2);
    run Crash();
    run Judge()
  }
}
