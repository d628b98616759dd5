/* Agreement on the next view (native/engine/view_change.hpp): three members, a process that joins, two faults.
 * `nox -s spin` sees every state of each of these,
 * check: -DHOSTS=1
 * check: -DHOSTS=3
 *
 * and that a mistake is found with each of these:
 * mistake: -DHOSTS=1 -DREDO_OWN
 * mistake: -DHOSTS=1 -DNO_QUORUM
 * mistake: -DHOSTS=1 -DKEEPS_NOTHING
 * mistake: -DHOSTS=1 -DNOT_PASSED_ON
 * mistake: -DHOSTS=1 -DDEAD_ARE_ASKED
 * mistake: -DHOSTS=3 -DREDO_OWN
 * mistake: -DHOSTS=3 -DPROMISES_BIND_NOBODY
 * mistake: -DHOSTS=3 -DOLD_IS_ACCEPTED
 * mistake: -DHOSTS=3 -DNOBODY_YIELDS
 * mistake: -DHOSTS=3 -DWHOEVER_PROPOSES_WAITS
 *
 * Places 0 to 2 are members, place 3 may be let in. A fault is the end of a process at any moment, or, with three hosts, a
 * cable between two of them that is cut. On one host the others see an end for sure; from another one it looks like silence.
 * A message is taken at any moment after it was sent; those of a process that has ended reach any one of the others, all of
 * them or none. Without the witness, and without what else promises and views say: the newest commit, what was under way,
 * that a backend was given up. On none of these it depends who decides.
 *
 * Checked: of those who live nobody decides another successor of a view; who becomes a member is known to all others; in the
 * end all who go on have the same view, with nobody in it whom they have lost. A place has a ballot for each of the first
 * ROUNDS numbers: schedules in which it would need more of them end there.
 *
 * The mistakes: a leader proposes what it likes though another view has been accepted; whoever is reached decides; who
 * arrives is let in though a member does not know it; only the leader tells the view; who has ended is waited for; an older
 * ballot is promised, or accepted, after a newer one; who has led in vain leads on; whoever has proposed waits for ever for
 * those who are lost since.
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

typedef Process {
  /* What it knows. */
  unsigned epoch : 4;     /* the ballot in which its view was first proposed; 0: the first view */
  unsigned members : 4;
  unsigned lost : 4;      /* suspected, or seen to end */
  unsigned ended : 4;     /* seen to end, or told so */
  unsigned yields : 4;    /* who has led in vain */
  unsigned wanted : 1;    /* it is frozen */
  unsigned expects : 1;   /* it would let place 3 in ... */
  unsigned had : 1;       /* ... unless that has been a member: a place is given once */
  unsigned promised : 4;
  unsigned accepted : 4;  /* the ballot; 0: nothing */
  unsigned newest : 4;    /* ballot that it has heard of in a refusal */
  unsigned evicted : 1;
  unsigned told : 1;      /* place 3 of its view: before anything else that is of it */
  /* Of a leader. */
  unsigned leads : 4;     /* its ballot; 0: it follows */
  unsigned proposes : 1;
  unsigned waits : 1;     /* before it tries again, as it was refused */
  unsigned answers : 4;
  unsigned adopted : 4;   /* the ballot of the accepted proposal that it has to propose again */
  /* Whom who answered has lost; bit 4: it expects place 3. */
  unsigned said0 : 5;
  unsigned said1 : 5;
  unsigned said2 : 5;
  unsigned said3 : 5;
  /* When it has ended: who still gets its messages. */
  unsigned heard : 4
};
Process at[PLACES];

typedef Ballot {
  unsigned epoch : 4;      /* of the view that is proposed in it: the ballot that was first proposed in */
  unsigned members : 4;    /* of the view that was first proposed in it */
  unsigned successor : 4;  /* of that view, where it was decided; 0: none */
  unsigned installed : 4   /* that view: by whom */
};
Ballot ballot[BALLOTS];  /* the first one is that of the first view */

byte dead = 0;
byte faults = 0;
byte cuts = 0;  /* of pairs, see CABLE */
bool out_of_ballots = false;
hidden byte i; hidden byte j; hidden byte b; hidden byte v;  /* in d_steps */

#define CABLE(x, y) ((x) + (y) + ((x) * (y) > 0))  /* 01 02 03 12 13 23: 1 2 3 4 5 6 */
#define CUT(x, y) HAS(cuts, CABLE(x, y))
#define ACTS(x) (!HAS(dead, x) && !at[x].evicted)
#define REACHES(x, y) (!CUT(x, y) && ACTS(y) && (!HAS(dead, x) || HAS(at[x].heard, y)))
#define IS_MEMBER(x) HAS(at[x].members, x)
#define ASKED(x) (at[x].members | (at[x].expects << JOINER))

/* The lowest member that is not lost, and has not led in vain while there is one. */
#define CAN_LEAD(x) (at[x].members & ~at[x].lost)
#define OPEN(x) (CAN_LEAD(x) & ~at[x].yields)
#define LOWEST(set) (HAS(set, 0) -> 0 : (HAS(set, 1) -> 1 : (HAS(set, 2) -> 2 : 3)))
#define LEADER(x) (OPEN(x) != 0 -> LOWEST(OPEN(x)) : LOWEST(CAN_LEAD(x)))

#ifdef NO_QUORUM
#define DECIDES(x) (true)
#else
#define DECIDES(x)                                                                                  \
  (2 * COUNT(at[x].answers & ~at[x].ended & at[x].members) > COUNT(at[x].members) ||                \
   COUNT(at[x].answers & ~at[x].ended & at[x].members) + COUNT(at[x].ended & at[x].members) == COUNT(at[x].members))
#endif
#ifdef DEAD_ARE_ASKED
#define ANSWERED(x) ((ASKED(x) & ~at[x].answers) == 0)
#else
#define ANSWERED(x) ((ASKED(x) & ~at[x].lost & ~at[x].answers) == 0)
#endif
#define EXPECTS(x, y) (!HAS(at[x].members, y) || (at[y].expects && at[y].epoch == at[x].epoch))
#define MAY_EXPECT(x) (!at[x].had && !HAS(at[x].members, JOINER) && !HAS(at[x].lost, JOINER))
#define ALL_EXPECT(x) (at[x].expects && EXPECTS(x, 0) && EXPECTS(x, 1) && EXPECTS(x, 2) && MAY_EXPECT(x))
#define FOLLOWS_IN(x) (at[x].leads != 0 && LEADER(x) != x)
#define BEGINS(x) (at[x].leads == 0 && LEADER(x) == x)
#define READY_TO_PROPOSE(x)                                                                         \
  (at[x].leads != 0 && !at[x].proposes && LEADER(x) == x && ANSWERED(x) && (DECIDES(x) || MAY_YIELD(x)))
#ifdef NOBODY_YIELDS
#define MAY_YIELD(x) (false)
#else
#define MAY_YIELD(x) (!HAS(at[x].yields, x))
#endif
#define READY_TO_INSTALL(x) (at[x].leads != 0 && at[x].proposes && LEADER(x) == x && DECIDES(x))
#ifdef WHOEVER_PROPOSES_WAITS
#define PROPOSES_IN_VAIN(x) (false)
#else
#define PROPOSES_IN_VAIN(x)                                                                         \
  (at[x].leads != 0 && at[x].proposes && LEADER(x) == x && !DECIDES(x) && MAY_YIELD(x) &&           \
   (at[x].members & ~at[x].lost & ~at[x].answers) == 0)
#endif

inline follow(x) {
  at[x].leads = 0;
  at[x].proposes = 0;
  at[x].answers = 0;
  at[x].adopted = 0;
  at[x].said0 = 0; at[x].said1 = 0; at[x].said2 = 0; at[x].said3 = 0
}

/* It was refused, or has promised a newer ballot to somebody else: it tries again only after a while. */
inline give_up(x) {
  at[x].waits = at[x].waits || at[x].leads != 0;
  follow(x)
}

inline answer(x, y) {
  at[x].answers = at[x].answers | BIT(y);
  b = at[y].lost | (at[y].expects << 4);
  if
  :: y == 0 -> at[x].said0 = b
  :: y == 1 -> at[x].said1 = b
  :: y == 2 -> at[x].said2 = b
  :: else -> at[x].said3 = b
  fi;
  at[x].adopted = (at[y].accepted > at[x].adopted -> at[y].accepted : at[x].adopted)
}

inline begin(x) {
  b = (at[x].newest > at[x].promised -> at[x].newest : at[x].promised);
  b = (b / PLACES + 1) * PLACES + x;
  if
  :: b >= BALLOTS -> out_of_ballots = true; at[x].wanted = 0
  :: else ->
     at[x].leads = b;
     at[x].newest = b;
     at[x].promised = b;
     at[x].waits = 0;
     answer(x, x)
  fi
}

/* What a leader does that knows more than before. */
inline lead(x) {
  if
  :: at[x].wanted && IS_MEMBER(x) && FOLLOWS_IN(x) -> follow(x)
  :: at[x].wanted && IS_MEMBER(x) && BEGINS(x) && !at[x].waits -> begin(x)
  :: else
  fi
}

/* A new view at x, of epoch v. */
inline install(x) {
  at[x].evicted = IS_MEMBER(x) && !HAS(ballot[v].members, x);
  at[x].epoch = v;
  at[x].members = ballot[v].members;
  ballot[v].installed = ballot[v].installed | BIT(x);
  at[x].promised = (at[x].promised > v -> at[x].promised : v);
  at[x].accepted = 0;
  follow(x);
  at[x].waits = 0;
  at[x].yields = 0;
  at[x].had = at[x].had || HAS(at[x].members, JOINER);
  at[x].told = at[x].expects || HAS(at[x].members, JOINER);
  at[x].expects = 0;  /* it says so again, to all */
  at[x].wanted = IS_MEMBER(x) && (at[x].members & at[x].lost) != 0;
  lead(x)
}

#define SAID(x, y) (y == 0 -> at[x].said0 : (y == 1 -> at[x].said1 : (y == 2 -> at[x].said2 : at[x].said3)))
#define LOST_BY_ANY(x, y)                                                                           \
  ((HAS(v, 0) && HAS(at[x].said0, y)) || (HAS(v, 1) && HAS(at[x].said1, y)) || (HAS(v, 2) && HAS(at[x].said2, y)) || \
   (HAS(v, 3) && HAS(at[x].said3, y)))
#ifdef KEEPS_NOTHING
#define KNOWN_TO_ALL(x) (true)
#else
#define KNOWN_TO_ALL(x)                                                                             \
  ((!HAS(v, 0) || HAS(at[x].said0, 4)) && (!HAS(v, 1) || HAS(at[x].said1, 4)) && (!HAS(v, 2) || HAS(at[x].said2, 4)))
#endif

/* Of all that can reach each other; whoever is known to all of them comes. Bits of v. */
inline choose(x) {
  v = 0;
  j = 0;
  do
  :: j < 2 * PLACES ->  /* first those that have not led in vain */
     i = j % PLACES;
     if
     :: HAS(at[x].members & at[x].answers & ~at[x].lost, i) && HAS(at[x].yields, i) == j / PLACES &&
        (SAID(x, i) & v) == 0 && !LOST_BY_ANY(x, i) -> v = v | BIT(i)
     :: else
     fi;
     j++
  :: else -> break
  od;
  if
  :: at[x].expects && HAS(~at[x].members & at[x].answers & ~at[x].lost, JOINER) && (at[x].said3 & v) == 0 &&
     !LOST_BY_ANY(x, JOINER) && KNOWN_TO_ALL(x) -> v = v | BIT(JOINER)
  :: else
  fi
}

inline propose(x) {
  b = at[x].leads;
  if
#ifndef REDO_OWN
  :: at[x].adopted != 0 -> ballot[b].epoch = ballot[at[x].adopted].epoch
#endif
  :: else ->
     choose(x);
     ballot[b].epoch = b;
     ballot[b].members = v;
     /* Whoever becomes a member is known to all others. */
     assert(!HAS(v & ~at[x].members, JOINER) ||
            ((!HAS(v & ~dead, 0) || at[0].expects || at[0].epoch != at[x].epoch) &&
             (!HAS(v & ~dead, 1) || at[1].expects || at[1].epoch != at[x].epoch) &&
             (!HAS(v & ~dead, 2) || at[2].expects || at[2].epoch != at[x].epoch)))
  fi;
  at[x].proposes = 1;
  at[x].accepted = b;
  at[x].adopted = 0;
  at[x].said0 = 0; at[x].said1 = 0; at[x].said2 = 0; at[x].said3 = 0;
  at[x].answers = BIT(x)
}

#ifdef PROMISES_BIND_NOBODY
#define PROMISES(number, x) (true)
#else
#define PROMISES(number, x) ((number) > at[x].promised)
#endif
#ifdef OLD_IS_ACCEPTED
#define ACCEPTS(number, x) (true)
#else
#define ACCEPTS(number, x) ((number) >= at[x].promised)
#endif
#ifdef NOT_PASSED_ON
#define PASSES_ON(x) (at[x].epoch % PLACES == (x))
#else
#define PASSES_ON(x) (true)
#endif
#define ASKS(y, x)                                                                                  \
  (REACHES(y, x) && at[y].leads != 0 && HAS(ASKED(y) & ~at[y].answers & ~at[y].ended, x) && !HAS(at[x].lost, y))
#define KNOWS_MORE(y, x)                                                                            \
  ((IS_MEMBER(x) && !at[x].wanted) || (at[y].ended & ~at[x].ended) != 0 ||                          \
   (HAS(at[y].yields, y) && !HAS(at[x].yields, y)) || (HAS(at[y].lost, x) && !HAS(at[x].lost, y)))
/* Whoever is evicted says so to all, and ends. */
#define SAYS_ITS_END(y, x) (y == JOINER && at[y].evicted && at[x].epoch >= at[y].epoch && !CUT(x, y))

#define PEER(y)                                                                                     \
  /* It sees the other's end, or hears nothing of it any more. */                                   \
  :: d_step { me != y && ACTS(me) && !HAS(at[me].lost, y) &&                                        \
       (HAS(dead, y) || CUT(me, y) || SAYS_ITS_END(y, me)) ->                                       \
       at[me].lost = at[me].lost | BIT(y);                                                          \
       if                                                                                           \
       :: (HOSTS == 1 && HAS(dead, y)) || SAYS_ITS_END(y, me) ->                                    \
          at[me].ended = at[me].ended | BIT(y);                                                     \
          at[me].yields = 0                                                                         \
       :: else                                                                                      \
       fi;                                                                                          \
       at[me].wanted = at[me].wanted || (IS_MEMBER(me) && HAS(at[me].members, y));                  \
       lead(me) }                                                                                   \
  /* It hears that the other is frozen, and what that one knows. */                                 \
  :: d_step { me != y && REACHES(y, me) && !HAS(dead, y) && at[y].wanted && at[y].epoch == at[me].epoch && \
       HAS(at[me].members, y) && KNOWS_MORE(y, me) ->                                               \
       at[me].wanted = at[me].wanted || IS_MEMBER(me);                                              \
       at[me].yields = ((at[y].ended & ~at[me].ended) != 0 -> 0 : at[me].yields) | (HAS(at[y].yields, y) << y); \
       at[me].ended = at[me].ended | at[y].ended;                                                   \
       at[me].lost = at[me].lost | at[y].ended | (HAS(at[y].lost, me) << y);                        \
       lead(me) }                                                                                   \
  /* It is asked to promise. */                                                                     \
  :: d_step { me != y && ASKS(y, me) && !at[y].proposes && (at[me].epoch == at[y].epoch ||          \
        (!IS_MEMBER(me) && !at[me].evicted && (at[me].epoch > at[y].epoch || !at[y].told))) ->      \
       if                                                                                           \
       :: at[me].epoch != at[y].epoch ->                                                            \
          at[me].epoch = at[y].epoch;                                                               \
          at[me].promised = (at[me].promised > at[me].epoch -> at[me].promised : at[me].epoch);     \
          at[me].accepted = 0;                                                                      \
          at[me].members = at[y].members                                                            \
       :: else                                                                                      \
       fi;                                                                                          \
       at[me].wanted = at[me].wanted || IS_MEMBER(me);                                              \
       if                                                                                           \
       :: PROMISES(at[y].leads, me) ->                                                              \
          at[me].promised = at[y].leads;                                                            \
          give_up(me);                                                                              \
          if                                                                                        \
          :: HAS(dead, y)                                                                           \
          :: else -> answer(y, me)                                                                  \
          fi                                                                                        \
       :: else ->                                                                                   \
          at[y].newest = (at[me].promised > at[y].newest -> at[me].promised : at[y].newest);        \
          give_up(y)                                                                                \
       fi;                                                                                          \
       lead(me) }                                                                                   \
  /* It is asked to accept. */                                                                      \
  :: d_step { me != y && ASKS(y, me) && at[y].proposes && at[me].epoch == at[y].epoch ->            \
       if                                                                                           \
       :: ACCEPTS(at[y].leads, me) ->                                                               \
          at[me].promised = (at[y].leads > at[me].promised -> at[y].leads : at[me].promised);       \
          at[me].accepted = at[y].leads;                                                            \
          at[y].answers = at[y].answers | BIT(me)                                                   \
       :: else ->                                                                                   \
          at[y].newest = (at[me].promised > at[y].newest -> at[me].promised : at[y].newest);        \
          give_up(y)                                                                                \
       fi }                                                                                         \
  /* It is told of the view that the other has. */                                                  \
  :: d_step { me != y && REACHES(y, me) && at[y].epoch > at[me].epoch && HAS(ballot[at[y].epoch].installed, y) && \
       PASSES_ON(y) && (IS_MEMBER(me) || HAS(at[y].members, me) || (me == JOINER && at[y].told)) -> \
       v = at[y].epoch;                                                                             \
       install(me) }

#define END(subset)                                                                                 \
  :: d_step { faults < 2 && !HAS(dead, me) ->                                                       \
       dead = dead | BIT(me);                                                                       \
       at[me].heard = (subset) & ~dead;                                                             \
       faults++;                                                                                    \
       if                                                                                           \
       :: at[me].heard == 0 -> forget(me)                                                           \
       :: else                                                                                      \
       fi }

/* Of whom nobody hears any more. */
inline forget(x) {
  follow(x);
  at[x].epoch = 0; at[x].members = 0; at[x].lost = 0; at[x].ended = 0; at[x].yields = 0; at[x].wanted = 0;
  at[x].expects = 0; at[x].had = 0; at[x].promised = 0; at[x].accepted = 0; at[x].newest = 0; at[x].evicted = 0;
  at[x].told = 0; at[x].waits = 0
}

#define me (_pid - 1)

proctype Place() {
  do
  PEER(0)
  PEER(1)
  PEER(2)
  PEER(3)
  /* It would let place 3 in. */
  :: d_step { me != JOINER && ACTS(me) && IS_MEMBER(me) && !at[me].expects && !at[me].wanted && MAY_EXPECT(me) ->
       at[me].expects = 1 }
  /* All would, as they have told it. */
  :: d_step { ACTS(me) && IS_MEMBER(me) && !at[me].wanted && ALL_EXPECT(me) ->
       at[me].wanted = 1;
       lead(me) }
  /* It leads, again. */
  :: d_step { ACTS(me) && at[me].wanted && IS_MEMBER(me) && BEGINS(me) -> begin(me) }
  :: d_step { ACTS(me) && READY_TO_PROPOSE(me) ->
       if
       :: DECIDES(me) -> propose(me)
       :: else -> at[me].yields = at[me].yields | BIT(me); lead(me)
       fi }
  /* Some have been lost since it proposed. */
  :: d_step { ACTS(me) && PROPOSES_IN_VAIN(me) -> at[me].yields = at[me].yields | BIT(me); lead(me) }
  /* What it has proposed is decided. */
  :: d_step { ACTS(me) && READY_TO_INSTALL(me) ->
       v = ballot[at[me].leads].epoch;
       /* Of its members those only may know another one who have ended since. */
       b = ballot[at[me].epoch].successor;
       assert(b == 0 || b == v || (ballot[b].installed & at[me].members & ~dead) == 0);
       ballot[at[me].epoch].successor = v;
       install(me) }
  /* Faults. */
  END(0)
  END(1)
  END(2)
  END(4)
  END(15)
  :: d_step { HOSTS > 1 && faults < 2 && me != 0 && !CUT(0, me) -> cuts = cuts | BIT(CABLE(0, me)); faults++ }
  :: d_step { HOSTS > 1 && faults < 2 && me > 1 && !CUT(1, me) -> cuts = cuts | BIT(CABLE(1, me)); faults++ }
  :: d_step { HOSTS > 1 && faults < 2 && me > 2 && !CUT(2, me) -> cuts = cuts | BIT(CABLE(2, me)); faults++ }
  :: d_step { me == 0 && faults < 2 -> faults = 2 }  /* no more of them */
  :: timeout -> break
  od
}

/* Whom a member can still decide with. */
#define THERE(x, y) (HAS(at[x].members, y) && !HAS(dead, y) && !HAS(at[x].lost, y) && !at[y].evicted)
#define REACHED(x) (THERE(x, 0) + THERE(x, 1) + THERE(x, 2) + THERE(x, 3))
#define ENOUGH(x) (HOSTS == 1 || 2 * REACHED(x) > COUNT(at[x].members))
#define GOES_ON(x) (!HAS(dead, x) && !at[x].evicted && IS_MEMBER(x) && ENOUGH(x))
#define SETTLED(x) (!GOES_ON(x) || (!at[x].wanted && (at[x].members & at[x].lost) == 0))
#define ALIKE(x, y) (!GOES_ON(x) || !GOES_ON(y) || at[x].epoch == at[y].epoch)

init {
  atomic {
    ballot[0].members = 7;
    at[0].members = 7; at[1].members = 7; at[2].members = 7; at[3].members = 7;
    run Place();
    run Place();
    run Place();
    run Place()
  };
  _nr_pr == 1;
  if
  :: out_of_ballots
  :: else ->
     assert(SETTLED(0) && SETTLED(1) && SETTLED(2) && SETTLED(3));
     assert(ALIKE(0, 1) && ALIKE(0, 2) && ALIKE(0, 3) && ALIKE(1, 2) && ALIKE(1, 3) && ALIKE(2, 3))
  fi
}
