/* Agreement on the next view (native/engine/view_change.hpp): three members, a process that joins, two faults.
 * `nox -s spin` sees every state of
 * check: -DHOSTS=1
 *
 * Places 0 to 2 are members, place 3 may be let in. A fault is the end of a process at any moment, which the others see for
 * sure, as on one host. A message is taken at any moment after it was sent; those of a process that has ended reach any of
 * the others or not. Without the witness. With -DHOSTS=3 an end looks like silence, and a fault may be a cable that is cut:
 * not all of its states have been seen so far.
 *
 * Checked: of those who live nobody decides another successor of a view; who becomes a member is known to all others; in the
 * end all who go on have the same view, with nobody in it whom they have lost. A place has a ballot for each of the first
 * ROUNDS numbers: schedules in which it would need more of them end there.
 *
 * Each of these mistakes is found: -DREDO_OWN (a leader proposes what it likes though another view has been accepted),
 * -DNO_QUORUM (whoever is reached decides), -DKEEPS_NOTHING (who arrives is let in though a member does not know it),
 * -DNOT_PASSED_ON (only the leader tells the view), -DDEAD_ARE_ASKED (who has ended is waited for). Not found so, as proofs of
 * ends leave no two leaders for long: -DPROMISES_BIND_NOBODY and -DOLD_IS_ACCEPTED, which native/tests/mistakes.py plants.
 */

#ifndef HOSTS
#define HOSTS 1
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#define PLACES 4
#define JOINER 3
#define BALLOTS (PLACES * (ROUNDS + 1))
#define BIT(x) (1 << (x))
#define HAS(set, x) (((set) >> (x)) & 1)
#define COUNT(set) (HAS(set, 0) + HAS(set, 1) + HAS(set, 2) + HAS(set, 3))

/* What each place knows. */
byte epoch[PLACES];        /* the ballot in which its view was first proposed; 0: the first view */
byte members[PLACES] = 7;
byte lost[PLACES];         /* suspected, or seen to end */
byte ended[PLACES];        /* seen to end, or told so */
byte yields[PLACES];       /* who has led in vain */
bool wanted[PLACES];       /* it is frozen */
bool expects[PLACES];      /* it would let place 3 in */
byte promised[PLACES];
byte accepted[PLACES];     /* the ballot; 0: nothing */
byte newest[PLACES];       /* ballot that it has heard of in a refusal */
bool evicted[PLACES];
bool told[PLACES];         /* place 3 of its view: before anything else that is of it */

/* Of a leader. */
byte leads[PLACES];        /* its ballot; 0: it follows */
bool proposes[PLACES];
byte answers[PLACES];
byte adopted[PLACES];      /* the ballot of the accepted proposal that it has to propose again */
byte said[PLACES * PLACES];  /* whom who answered has lost; bit 4: it expects place 3 */

/* Of a ballot: what is proposed in it, which is of the epoch `of`. */
byte proposed_epoch[BALLOTS];
byte proposed_members[BALLOTS];
/* Of a view, by its epoch. */
byte successor[BALLOTS];
byte members_in[BALLOTS];
byte installed[BALLOTS];   /* by whom */

byte dead = 0;
byte faults = 0;
byte cuts = 0;             /* of pairs, see CABLE */
byte heard[PLACES];        /* who still gets messages of one that has ended */
bool out_of_ballots = false;
byte i; byte j; byte b; byte v;  /* in d_steps */

#define CABLE(x, y) ((x) + (y) + ((x) * (y) > 0))  /* 01 02 03 12 13 23: 1 2 3 4 5 6 */
#define CUT(x, y) HAS(cuts, CABLE(x, y))
#define REACHES(x, y) (!CUT(x, y) && !HAS(dead, y) && (!HAS(dead, x) || HAS(heard[x], y)))
#define IS_MEMBER(x) HAS(members[x], x)
#define ASKED(x) (members[x] | (expects[x] << JOINER))

/* The lowest member that is not lost, and has not led in vain while there is one. */
#define CAN_LEAD(x, y) (HAS(members[x], y) && !HAS(lost[x], y))
#define OPEN(x, y) (CAN_LEAD(x, y) && !HAS(yields[x], y))
#define ANY_OPEN(x) (OPEN(x, 0) || OPEN(x, 1) || OPEN(x, 2) || OPEN(x, 3))
#define LOWEST(x, kind) (kind(x, 0) -> 0 : (kind(x, 1) -> 1 : (kind(x, 2) -> 2 : 3)))
#define LEADER(x) (ANY_OPEN(x) -> LOWEST(x, OPEN) : LOWEST(x, CAN_LEAD))

#ifdef NO_QUORUM
#define DECIDES(x) (true)
#else
#define DECIDES(x)                                                                         \
  (2 * COUNT(answers[x] & ~ended[x] & members[x]) > COUNT(members[x]) ||                   \
   COUNT(answers[x] & ~ended[x] & members[x]) + COUNT(ended[x] & members[x]) == COUNT(members[x]))
#endif
#ifdef DEAD_ARE_ASKED
#define ANSWERED(x) ((ASKED(x) & ~answers[x]) == 0)
#else
#define ANSWERED(x) ((ASKED(x) & ~lost[x] & ~answers[x]) == 0)
#endif
#define EXPECTS(x, y) (!HAS(members[x], y) || (expects[y] && epoch[y] == epoch[x]))
#define ALL_EXPECT(x)                                                                      \
  (expects[x] && EXPECTS(x, 0) && EXPECTS(x, 1) && EXPECTS(x, 2) && !HAS(members[x], JOINER) && !HAS(lost[x], JOINER))

/* A new view at x, of epoch v. */
inline install(x) {
  evicted[x] = IS_MEMBER(x) && !HAS(members_in[v], x);
  epoch[x] = v;
  members[x] = members_in[v];
  installed[v] = installed[v] | BIT(x);
  promised[x] = v;
  accepted[x] = 0;
  leads[x] = 0;
  proposes[x] = false;
  yields[x] = 0;
  answers[x] = 0;
  adopted[x] = 0;
  said[x * PLACES] = 0; said[x * PLACES + 1] = 0; said[x * PLACES + 2] = 0; said[x * PLACES + 3] = 0;
  told[x] = expects[x] || HAS(members[x], JOINER);
  expects[x] = false;  /* it says so again, to all */
  wanted[x] = IS_MEMBER(x) && (members[x] & lost[x]) != 0
}

inline give_up(x) {
  leads[x] = 0;
  proposes[x] = false;
  answers[x] = 0;
  adopted[x] = 0;
  said[x * PLACES] = 0; said[x * PLACES + 1] = 0; said[x * PLACES + 2] = 0; said[x * PLACES + 3] = 0
}

inline answer(x, y) {
  answers[x] = answers[x] | BIT(y);
  said[x * PLACES + y] = lost[y] | (expects[y] << 4);
  if
  :: accepted[y] > adopted[x] -> adopted[x] = accepted[y]
  :: else
  fi
}

inline begin(x) {
  b = (newest[x] > promised[x] -> newest[x] : promised[x]);
  b = (b / PLACES + 1) * PLACES + x;
  if
  :: b >= BALLOTS -> out_of_ballots = true; wanted[x] = false
  :: else ->
     leads[x] = b;
     newest[x] = b;
     promised[x] = b;
     answer(x, x)
  fi
}

#define LOST_BY_ANY(x, y)                                                                  \
  ((HAS(v, 0) && HAS(said[(x) * PLACES], y)) || (HAS(v, 1) && HAS(said[(x) * PLACES + 1], y)) || \
   (HAS(v, 2) && HAS(said[(x) * PLACES + 2], y)))
#ifdef KEEPS_NOTHING
#define KNOWN_TO_ALL(x) (true)
#else
#define KNOWN_TO_ALL(x)                                                                    \
  ((!HAS(v, 0) || HAS(said[(x) * PLACES], 4)) && (!HAS(v, 1) || HAS(said[(x) * PLACES + 1], 4)) && \
   (!HAS(v, 2) || HAS(said[(x) * PLACES + 2], 4)))
#endif

/* Of all that can reach each other; whoever is known to all of them comes. Bits of v. */
inline choose(x) {
  v = 0;
  j = 0;
  do
  :: j < 2 * JOINER ->  /* first those that have not led in vain */
     i = j % JOINER;
     if
     :: HAS(members[x] & answers[x] & ~lost[x], i) && HAS(yields[x], i) == j / JOINER &&
        (said[x * PLACES + i] & v) == 0 && (v == 0 || !LOST_BY_ANY(x, i)) -> v = v | BIT(i)
     :: else
     fi;
     j++
  :: else -> break
  od;
  if
  :: HAS(members[x] & answers[x] & ~lost[x], JOINER) && (said[x * PLACES + JOINER] & v) == 0 && !LOST_BY_ANY(x, JOINER) ->
     v = v | BIT(JOINER)
  :: HAS(~members[x] & answers[x] & ~lost[x], JOINER) && (said[x * PLACES + JOINER] & v) == 0 &&
     !LOST_BY_ANY(x, JOINER) && KNOWN_TO_ALL(x) -> v = v | BIT(JOINER)
  :: else
  fi;
  i = 0;
  j = 0
}

inline propose(x) {
  b = leads[x];
  if
#ifndef REDO_OWN
  :: adopted[x] != 0 ->
     proposed_epoch[b] = proposed_epoch[adopted[x]];
     proposed_members[b] = proposed_members[adopted[x]]
#endif
  :: else ->
     choose(x);
     proposed_epoch[b] = b;
     proposed_members[b] = v;
     /* Whoever becomes a member is known to all others. */
     assert(!HAS(v & ~members[x], JOINER) || ((!HAS(v, 0) || expects[0] || epoch[0] != epoch[x]) &&
            (!HAS(v, 1) || expects[1] || epoch[1] != epoch[x]) && (!HAS(v, 2) || expects[2] || epoch[2] != epoch[x])))
  fi;
  proposes[x] = true;
  accepted[x] = b;
  answers[x] = BIT(x)
}

#ifdef PROMISES_BIND_NOBODY
#define PROMISES(ballot, x) (true)
#else
#define PROMISES(ballot, x) ((ballot) > promised[x])
#endif
#ifdef OLD_IS_ACCEPTED
#define ACCEPTS(ballot, x) (true)
#else
#define ACCEPTS(ballot, x) ((ballot) >= promised[x])
#endif
#ifdef NOT_PASSED_ON
#define PASSES_ON(x) (epoch[x] % PLACES == (x))
#else
#define PASSES_ON(x) (true)
#endif

#define PEER(y)                                                                            \
  /* It sees the other's end, or hears nothing of it any more. */                          \
  :: d_step { me != y && !HAS(dead, me) && !HAS(lost[me], y) && (HAS(dead, y) || CUT(me, y)) -> \
       lost[me] = lost[me] | BIT(y);                                                       \
       if                                                                                  \
       :: HOSTS == 1 -> ended[me] = ended[me] | BIT(y); yields[me] = 0                     \
       :: else                                                                             \
       fi;                                                                                 \
       wanted[me] = wanted[me] || (IS_MEMBER(me) && HAS(members[me], y)) }                 \
  /* It hears that the other is frozen, and what that one knows. */                        \
  :: d_step { me != y && REACHES(y, me) && wanted[y] && epoch[y] == epoch[me] && HAS(members[me], y) &&  \
       !HAS(dead, y) && ((IS_MEMBER(me) && !wanted[me]) || (ended[y] & ~ended[me]) != 0 || \
        (HAS(yields[y], y) && !HAS(yields[me], y)) || (HAS(lost[y], me) && !HAS(lost[me], y))) -> \
       wanted[me] = wanted[me] || IS_MEMBER(me);                                           \
       yields[me] = ((ended[y] & ~ended[me]) != 0 -> 0 : yields[me]) | (HAS(yields[y], y) << y); \
       ended[me] = ended[me] | ended[y];                                                   \
       lost[me] = lost[me] | ended[y] | (HAS(lost[y], me) << y) }                          \
  /* It is asked to promise. */                                                            \
  :: d_step { me != y && REACHES(y, me) && leads[y] != 0 && !proposes[y] && HAS(ASKED(y), me) && \
       !HAS(answers[y], me) && !HAS(ended[y], me) && !HAS(lost[me], y) &&                  \
       (epoch[me] == epoch[y] || (!IS_MEMBER(me) && !evicted[me] && (epoch[me] > epoch[y] || !told[y]))) -> \
       if                                                                                  \
       :: epoch[me] != epoch[y] -> epoch[me] = epoch[y]; promised[me] = epoch[y]; accepted[me] = 0; \
          members[me] = members[y]                                                         \
       :: else                                                                             \
       fi;                                                                                 \
       wanted[me] = wanted[me] || IS_MEMBER(me);                                           \
       if                                                                                  \
       :: PROMISES(leads[y], me) ->                                                        \
          give_up(me);                                                                     \
          promised[me] = leads[y];                                                         \
          if                                                                               \
          :: HAS(dead, y)                                                                  \
          :: else -> answer(y, me)                                                         \
          fi                                                                               \
       :: else -> newest[y] = promised[me]; give_up(y)                                     \
       fi }                                                                                \
  /* It is asked to accept. */                                                             \
  :: d_step { me != y && REACHES(y, me) && leads[y] != 0 && proposes[y] && HAS(ASKED(y), me) && \
       !HAS(answers[y], me) && !HAS(ended[y], me) && !HAS(lost[me], y) && epoch[me] == epoch[y] -> \
       if                                                                                  \
       :: ACCEPTS(leads[y], me) ->                                                         \
          promised[me] = (leads[y] > promised[me] -> leads[y] : promised[me]);             \
          accepted[me] = leads[y];                                                         \
          answers[y] = answers[y] | BIT(me)                                                \
       :: else -> newest[y] = promised[me]; give_up(y)                                     \
       fi }                                                                                \
  /* It is told of the view that the other has. */                                         \
  :: d_step { me != y && REACHES(y, me) && epoch[y] > epoch[me] && HAS(installed[epoch[y]], y) &&  \
       PASSES_ON(y) && (IS_MEMBER(me) || HAS(members[y], me) || (me == JOINER && told[y])) ->     \
       v = epoch[y];                                                                       \
       install(me);                                                                        \
       v = 0 }

proctype Place(byte me) {
  byte subset;

  do
  PEER(0)
  PEER(1)
  PEER(2)
  PEER(3)
  /* It would let place 3 in. */
  :: d_step { !HAS(dead, me) && IS_MEMBER(me) && !evicted[me] && me != JOINER && !expects[me] && !wanted[me] &&
       !HAS(members[me], JOINER) && !HAS(lost[me], JOINER) -> expects[me] = true }
  /* All would, as they have told it. */
  :: d_step { !HAS(dead, me) && IS_MEMBER(me) && !evicted[me] && !wanted[me] && ALL_EXPECT(me) -> wanted[me] = true }
  /* It leads. */
  :: d_step { !HAS(dead, me) && wanted[me] && IS_MEMBER(me) && leads[me] == 0 && LEADER(me) == me -> begin(me); b = 0 }
  :: d_step { !HAS(dead, me) && leads[me] != 0 && !proposes[me] && ANSWERED(me) && LEADER(me) == me &&
       (DECIDES(me) || !HAS(yields[me], me)) ->
       if
       :: DECIDES(me) -> propose(me)
       :: else -> yields[me] = yields[me] | BIT(me)
       fi;
       v = 0;
       b = 0 }
  /* What it has proposed is decided. */
  :: d_step { !HAS(dead, me) && leads[me] != 0 && proposes[me] && DECIDES(me) ->
       v = proposed_epoch[leads[me]];
       members_in[v] = proposed_members[leads[me]];
       /* Of its members those only may know another one who have ended since. */
       assert(successor[epoch[me]] == 0 || successor[epoch[me]] == v ||
              (installed[successor[epoch[me]]] & members[me] & ~dead) == 0);
       successor[epoch[me]] = v;
       install(me);
       v = 0 }
  /* Faults. */
  :: atomic { faults < 2 && !HAS(dead, me) ->
       if
       :: subset = 0
       :: subset = 1
       :: subset = 2
       :: subset = 4
       :: subset = 15
       fi;
       heard[me] = subset;
       subset = 0;
       dead = dead | BIT(me);
       faults++ }
  :: d_step { HOSTS > 1 && faults < 2 && me != 0 && !CUT(0, me) -> cuts = cuts | BIT(CABLE(0, me)); faults++ }
  :: d_step { HOSTS > 1 && faults < 2 && me > 1 && !CUT(1, me) -> cuts = cuts | BIT(CABLE(1, me)); faults++ }
  :: d_step { HOSTS > 1 && faults < 2 && me > 2 && !CUT(2, me) -> cuts = cuts | BIT(CABLE(2, me)); faults++ }
  :: d_step { me == 0 && faults < 2 -> faults = 2 }  /* no more of them */
  :: timeout -> break
  od
}

/* Whom a member can still decide with. */
#define THERE(x, y) (HAS(members[x], y) && !HAS(dead, y) && !HAS(lost[x], y) && !evicted[y])
#define REACHED(x) (THERE(x, 0) + THERE(x, 1) + THERE(x, 2) + THERE(x, 3))
#define ENOUGH(x) (HOSTS == 1 || 2 * REACHED(x) > COUNT(members[x]))
#define GOES_ON(x) (!HAS(dead, x) && !evicted[x] && IS_MEMBER(x) && ENOUGH(x))
#define SETTLED(x)                                                                         \
  (!GOES_ON(x) || (!wanted[x] && (members[x] & lost[x]) == 0))
#define ALIKE(x, y) (!GOES_ON(x) || !GOES_ON(y) || epoch[x] == epoch[y])

init {
  atomic {
    run Place(0);
    run Place(1);
    run Place(2);
    run Place(3)
  };
  _nr_pr == 1;
  if
  :: out_of_ballots
  :: else ->
     assert(SETTLED(0) && SETTLED(1) && SETTLED(2) && SETTLED(3));
     assert(ALIKE(0, 1) && ALIKE(0, 2) && ALIKE(0, 3) && ALIKE(1, 2) && ALIKE(1, 3) && ALIKE(2, 3))
  fi
}
