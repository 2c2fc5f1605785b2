// SPDX-License-Identifier: Apache-2.0
// How the search orders what it finds: Sphinx's own points, but a heading with the words of the query in their order
// comes before pages with one of these words in any heading (15 points).
var Scorer = {  // as searchtools.js declares it, too
  score: ([, , , , points, , kind]) => (kind === SearchResultKind.title ? points + 5 : points),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
