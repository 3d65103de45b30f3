// dist, logmap, expmap and centroid on a CPU, and their gradients: the formulas of _fused.py and _centroid.py, which say
// where they come from, row by row in one pass. _extension.py calls `lorentz_run` through ctypes.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <type_traits>
#include <vector>

namespace {
using i64 = int64_t;

// What is written: numbers of the type that is read, or sums in the type that is computed in.
template <class T, class W> struct Out {
  T *set;
  W *add;
  Out at(i64 i) const { return {set ? set + i : set, add ? add + i : add}; }
  void one(i64 i, W value) const {
    if (add) add[i] += value;
    else set[i] = T(value);
  }
  template <class F> void space(i64 d, F value) const {  // after the time part
    if (add) {
#pragma omp simd
      for (i64 i = 0; i < d; i++) add[1 + i] += value(i);
    } else {
#pragma omp simd
      for (i64 i = 0; i < d; i++) set[1 + i] = T(value(i));
    }
  }
  template <class F> void point(W time, i64 d, F value) const {
    one(0, time);
    space(d, value);
  }
};

// One row: two vectors of k numbers; or n points of k numbers and m rows of n weights.
template <class T, class W> struct Row {
  const T *x, *y, *g;
  W c;
  i64 k, n, m;
  Out<T, W> a, b;  // the value; the gradients of x and y
  W *of_c, *scratch;
};

template <class W> constexpr W eps = std::numeric_limits<W>::epsilon();
template <class W> constexpr W tiny = std::numeric_limits<W>::min();

// Sums in lanes: the compiler may not reorder a sum by itself, nor should it a difference of close numbers.
template <class W> using Lanes __attribute__((vector_size(32))) = W;
template <class W> constexpr i64 L = 32 / sizeof(W);
#define INLINE __attribute__((always_inline))

template <class W, class T, class N> INLINE inline Lanes<W> lanes(const T *x, N left) {  // 0 beyond the end
  using From __attribute__((vector_size(L<W> * sizeof(T)))) = T;
  From some{};
  std::memcpy(&some, x, left * sizeof(T));
  return __builtin_convertvector(some, Lanes<W>);
}

// The loop over lanes: `body(i, how many)`.
template <class W, class F> INLINE inline void each(i64 d, F body) {
  i64 i = 0;
  for (; i + L<W> <= d; i += L<W>) body(i, std::integral_constant<i64, L<W>>{});
  if (i < d) body(i, d - i);
}

template <class W> INLINE inline W sum(Lanes<W> v) {
  for (i64 half = L<W> / 2; half; half /= 2)
    for (i64 i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}

template <class W, class A, class B> INLINE inline W dot(const A *a, const B *b, i64 d) {
  Lanes<W> ab{};
  each<W>(d, [&](i64 i, auto n) INLINE { ab += lanes<W>(a + i, n) * lanes<W>(b + i, n); });
  return sum<W>(ab);
}

template <class W> bool is_rounding(W pp, W ee) { return pp <= (8 * eps<W>) * (8 * eps<W>) * ee; }
template <class W> W over(W a, W b) { return b == 0 ? W(0) : a / b; }
template <class W> W sinh_of(W u) { return 2 * std::sqrt(u) * std::sqrt(1 + u); }
template <class W> W half_angle(W u) { return std::asinh(std::sqrt(u)); }

template <class W> struct Pair {
  W close, xx, yy, x0, y0, dd, xf, share, pp, u;
};

template <class T, class W> Pair<W> measure(const T *x, const T *y, i64 d, W c) {
  Lanes<W> aa{}, bb{}, ee{}, ae{}, ab{}, cc{};
  each<W>(d, [&](i64 i, auto n) INLINE {
    auto a = lanes<W>(x + i, n), b = lanes<W>(y + i, n), e = a - b;
    aa += a * a, bb += b * b, ee += e * e, ae += a * e, ab += a * b;
  });
  W xx = sum<W>(aa), yy = sum<W>(bb), dd = sum<W>(ee);
  bool is_close = dd < (xx < yy ? xx : yy);
  W close = is_close, xf = is_close ? sum<W>(ae) : -sum<W>(ab), share = xf / (xx + tiny<W>);
  W ff = is_close ? dd : yy, pp = ff - share * xf;
  if (sizeof(T) == sizeof(W) || xx * c > (1 << 20) || pp < 0) {  // the difference cancels
    each<W>(d, [&](i64 i, auto n) INLINE {
      auto a = lanes<W>(x + i, n), p = (close * a - lanes<W>(y + i, n)) - share * a;
      cc += p * p;
    });
    pp = sum<W>(cc);
  }
  if (is_rounding(pp, ff)) pp = 0;
  W h = 1 / c, x0 = std::sqrt(xx + h), y0 = std::sqrt(yy + h), both = x0 * y0;
  W xy = close * xx - xf, beyond = xy + h + both, acute = dd / beyond + (xx / beyond) * (pp * c), obtuse = c * (both - xy) - 1;
  return {close, xx, yy, x0, y0, dd, xf, share, pp, W(0.5) * (xy < -h ? obtuse : acute)};
}

template <class W> void apart(const Pair<W> &of, W c, W &a, W &b) {
  W steps = (of.x0 + of.y0) * of.x0;
  a = 1, b = of.close > 0 ? (of.dd - 2 * of.xf) / steps : of.y0 / of.x0;
  if (of.xx * c > 1) {
    W along = (of.u + 1) * (2 / c) * ((of.close - 1) - of.share) - of.pp;
    a = of.pp > 0, b = -(along / steps + a * of.share);
  }
}

template <class W> W angle_of_c(const Pair<W> &of, W c) {
  W gap = (of.xx - of.yy) / (of.x0 + of.y0);
  return (2 * of.u - W(0.5) * gap * gap / (of.x0 * of.y0)) / c;
}

template <class T, class W> void dist(const Row<T, W> &r) {
  r.a.one(0, half_angle(measure(r.x + 1, r.y + 1, r.k - 1, r.c).u) * (2 / std::sqrt(r.c)));
}

template <class T, class W> void dist_backward(const Row<T, W> &r) {
  const T *x = r.x + 1, *y = r.y + 1;
  W c = r.c, g = r.g[0], a, b;
  auto of = measure(x, y, r.k - 1, c);
  W sinh = sinh_of(of.u), scale = over(g * std::sqrt(c), sinh), close = of.close, turn = -of.x0 / of.y0;
  apart(of, c, a, b);
  a *= scale, b *= scale;
  auto way = [=](i64 i) { return b * x[i] + a * (close * x[i] - W(y[i])); };
  r.a.point(0, r.k - 1, way);
  r.b.point(0, r.k - 1, [=](i64 i) { return turn * way(i); });
  if (r.of_c) *r.of_c = g * (over(angle_of_c(of, c), sinh) - half_angle(of.u) / c) / std::sqrt(c);
}

template <class W> W shrinking(W u) { return u > 0 ? half_angle(u) / (std::sqrt(u) * std::sqrt(1 + u)) : W(1); }

template <class W> W shrinking_slope(W value, W u) {
  if (u >= W(0.02)) return (1 - value * (1 + 2 * u)) / (4 * u) / (1 + u);
  W sum = 0, term = W(-1) / 3;
  for (int n = 1; n <= 10; n++) sum += term, term *= -2 * u * W((n + 1) * (n + 1)) / W(n * (2 * n + 3));
  return sum;
}

template <class T, class W> void logmap(const Row<T, W> &r) {
  const T *x = r.x + 1, *y = r.y + 1;
  auto of = measure(x, y, r.k - 1, r.c);
  W factor = -shrinking(of.u), less = 2 * of.u + (1 - of.close), along = factor * less, close = of.close;
  r.a.point((of.xf + less * of.xx) * factor / of.x0, r.k - 1,
            [=](i64 i) { return factor * (close * x[i] - W(y[i])) + along * x[i]; });
}

template <class T, class W> void logmap_backward(const Row<T, W> &r) {
  const T *x = r.x + 1, *y = r.y + 1, *g = r.g + 1;
  i64 d = r.k - 1;
  W c = r.c, a, b;
  auto of = measure(x, y, d, c);
  W factor = shrinking(of.u), less = 2 * of.u + (1 - of.close), close = of.close, own = r.g[0] / of.x0;
  W v0 = -(of.xf + less * of.xx) * factor / of.x0;
  Lanes<W> by_x{}, by_f{};
  each<W>(d, [&](i64 i, auto n) INLINE {
    auto p = lanes<W>(x + i, n), w = lanes<W>(g + i, n) + own * p;
    by_x += w * p, by_f += w * (close * p - lanes<W>(y + i, n));
  });
  W wx = sum<W>(by_x), wf = sum<W>(by_f);
  W slope = shrinking_slope(factor, of.u), by_cosh = -(slope * wf + (factor + slope * less) * wx);
  apart(of, c, a, b);
  W turn = c * by_cosh, moved = -turn * (of.x0 / of.y0), shift = v0 / of.x0 + factor * less;
  W w_x = -factor * (less + close), f_x = turn * a - own * factor, x_x = turn * b - own * shift;
  W f_y = moved * a, x_y = moved * b;
  r.a.point(0, d, [=](i64 i) { return w_x * (g[i] + own * x[i]) + f_x * (close * x[i] - W(y[i])) + x_x * x[i]; });
  r.b.point(0, d, [=](i64 i) { return factor * (g[i] + own * x[i]) + f_y * (close * x[i] - W(y[i])) + x_y * x[i]; });
  if (r.of_c) *r.of_c = by_cosh * angle_of_c(of, c) + W(0.5) * own * v0 / of.x0 / (c * c);
}

template <class W> struct Step {
  W xx, xv, xx0, pp, q, s, cosh, share;  // share of v in y / cosh(s), tanh(s)/s
};

template <class T, class W> Step<W> stepped(const T *x, const T *v, i64 d, W c) {
  Lanes<W> aa{}, bb{}, ab{}, cc{};
  each<W>(d, [&](i64 i, auto n) INLINE {
    auto a = lanes<W>(x + i, n), b = lanes<W>(v + i, n);
    aa += a * a, bb += b * b, ab += a * b;
  });
  W xx = sum<W>(aa), vv = sum<W>(bb), xv = sum<W>(ab), along = xv / (xx + tiny<W>);
  each<W>(d, [&](i64 i, auto n) INLINE {
    auto p = lanes<W>(v + i, n) - along * lanes<W>(x + i, n);
    cc += p * p;
  });
  W pp = sum<W>(cc);
  if (is_rounding(pp, vv)) pp = 0;
  W xx0 = xx + 1 / c, q = vv / xx0 + (xx / xx0) * (pp * c), s = std::sqrt(q), cosh = std::cosh(s);
  W largest = std::numeric_limits<W>::max();  // what is too far for the type is inf, never inf - inf
  return {xx, xv, xx0, pp, q, s, cosh < largest ? cosh : largest, s == 0 ? W(1) : std::tanh(s) / s};
}

template <class T, class W> W reached(const T *x, const T *v, i64 d, W c, const Step<W> &of) {
  Lanes<W> yy{};
  each<W>(d, [&](i64 i, auto n) INLINE {
    auto y = (of.share * lanes<W>(v + i, n) + lanes<W>(x + i, n)) * of.cosh;
    yy += y * y;
  });
  return std::sqrt(sum<W>(yy) + 1 / c);
}

template <class T, class W> void expmap(const Row<T, W> &r) {
  const T *x = r.x + 1, *v = r.y + 1;
  i64 d = r.k - 1;
  auto of = stepped(x, v, d, r.c);
  W share = of.share, cosh = of.cosh;
  r.a.point(reached(x, v, d, r.c, of), d, [=](i64 i) { return (share * v[i] + x[i]) * cosh; });
}

template <class T, class W> void expmap_backward(const Row<T, W> &r) {
  const T *x = r.x + 1, *v = r.y + 1, *g = r.g + 1;
  i64 d = r.k - 1;
  auto of = stepped(x, v, d, r.c);
  W cosh = of.cosh, sinhc = of.s == 0 ? W(1) : std::sinh(of.s) / of.s, xv = of.xv, xx0 = of.xx0;
  W h = 1 / r.c, own = r.g[0] / reached(x, v, d, r.c, of), ox = own * cosh, ov = own * sinhc;
  Lanes<W> by_x{}, by_v{};
  each<W>(d, [&](i64 i, auto n) INLINE {
    auto a = lanes<W>(x + i, n), b = lanes<W>(v + i, n), w = (lanes<W>(g + i, n) + ox * a) + ov * b;
    by_x += w * a, by_v += w * b;
  });
  W wx = sum<W>(by_x), wv = sum<W>(by_v);
  W slope = (cosh - sinhc) / (2 * of.q);
  if (of.q < W(0.2)) {
    W term = W(1) / 6;
    slope = 0;
    for (int n = 1; n <= 7; n++) slope += term, term *= of.q / W(2 * n * (2 * n + 3));
  }
  W by_q = wv * slope + W(0.5) * wx * sinhc, a = 1, b = -xv / xx0;
  if (of.xx * r.c > 1) a = of.pp > 0, b = (h / xx0 - a) * xv / (of.xx + tiny<W>);
  W turn = by_q * (2 * r.c), v_v = turn * a, x_v = turn * b;
  turn = -turn * xv / xx0;
  W v_x = turn * a, x_x = turn * b;
  r.a.point(0, d, [=](i64 i) { return cosh * ((g[i] + ox * x[i]) + ov * v[i]) + v_x * v[i] + x_x * x[i]; });
  r.b.point(0, d, [=](i64 i) { return sinhc * ((g[i] + ox * x[i]) + ov * v[i]) + v_v * v[i] + x_v * x[i]; });
  if (r.of_c) *r.of_c = by_q * (of.q - (xv / xx0) * (xv / xx0)) / r.c - W(0.5) * own * h * h;
}

// What is known of one centroid; numbers of the points beside it stand in `scratch`.
template <class W> struct Mean {
  W total, length, s0, gap, inverse;
};

template <class T, class W> struct Set {
  const Row<T, W> &r;
  i64 d = r.k - 1, n = r.n;
  W *p0 = r.scratch, *squares = p0 + n, *w = squares + n, *along = w + n, *gaps = along + n, *beside = gaps + n;
  W *slant = beside + n, *pg = slant + n, *u = pg + n, *excess = u + d;
  const T *at(i64 i) const { return r.x + i * r.k + 1; }

  Set(const Row<T, W> &row) : r(row) {
    for (i64 i = 0; i < n; i++) {
      squares[i] = dot<W>(at(i), at(i), d), p0[i] = std::sqrt(squares[i] + 1 / r.c);
    }
  }

  Mean<W> mean(const T *weights, const T *g) const {
    Mean<W> of{};
    W h = 1 / r.c;
    for (i64 i = 0; i < n; i++) of.total += weights[i];
    bool empty = of.total < 64 * tiny<W>;
    for (i64 k = 0; k < d; k++) u[k] = 0;
    for (i64 i = 0; i < n; i++) {
      const T *x = at(i);
      W share = w[i] = empty ? W(0) : weights[i] / of.total;
      of.s0 += share * p0[i];
#pragma omp simd
      for (i64 k = 0; k < d; k++) u[k] += share * x[k];
    }
    of.length = std::sqrt(dot<W>(u, u, d));
    for (i64 k = 0; k < d; k++) u[k] = over(u[k], of.length);
    for (i64 i = 0; i < n; i++) {
      const T *x = at(i);
      W t = dot<W>(u, x, d);
      Lanes<W> squared{}, by_u{}, by_g{};
      each<W>(d, [&](i64 k, auto n) INLINE {
        auto v = lanes<W>(u + k, n), p = lanes<W>(x + k, n) - t * v;
        squared += p * p;
        if (g) by_u += p * v, by_g += p * lanes<W>(g + k, n);
      });
      W pp = sum<W>(squared);
      if (g) slant[i] = sum<W>(by_u), pg[i] = sum<W>(by_g);
      along[i] = t, beside[i] = !is_rounding(pp, squares[i]);
      gaps[i] = t >= 0 ? (pp * beside[i] + h) / (p0[i] + t) : p0[i] - t;
      of.gap += w[i] * gaps[i];
    }
    of.inverse = of.s0 == 0 ? W(0) : 1 / std::sqrt(of.gap * (of.s0 + of.length) * r.c);
    return of;
  }
};

template <class T, class W> void centroid(const Row<T, W> &r) {
  Set<T, W> set(r);
  for (i64 j = 0; j < r.m; j++) {
    auto of = set.mean(r.y + j * r.n, nullptr);
    W size = of.length * of.inverse, *u = set.u;
    r.a.at(j * r.k).point(std::sqrt(size * size + 1 / r.c), set.d, [=](i64 k) { return size * u[k]; });
  }
}

template <class T, class W> void centroid_backward(const Row<T, W> &r) {
  Set<T, W> set(r);
  i64 d = set.d, n = r.n;
  W *u = set.u, *excess = set.excess, c = r.c;
  if (r.of_c) *r.of_c = 0;
  for (i64 j = 0; j < r.m; j++) {
    const T *g = r.g + j * r.k + 1;
    auto of = set.mean(r.y + j * n, g);
    W length = of.length * of.inverse, m0 = std::sqrt(length * length + 1 / c), rest = of.gap * of.inverse;
    W own = g[-1] / m0, ahead = own * length, uu = dot<W>(u, u, d), gu = dot<W>(g, u, d) + ahead * uu, bend = 0;
    for (i64 k = 0; k < d; k++) excess[k] = 0;
    for (i64 i = 0; i < n; i++) {
      const T *x = set.at(i);
      W share = set.w[i] * set.beside[i], t = set.along[i];
      bend += set.w[i] / set.p0[i];
#pragma omp simd
      for (i64 k = 0; k < d; k++) excess[k] += share * (x[k] - t * u[k]);
    }
    W eu = dot<W>(excess, u, d), most = of.s0 > 0 ? of.s0 : W(1);
    for (i64 k = 0; k < d; k++) excess[k] = (excess[k] - eu * u[k]) / most;
    W eg = dot<W>(excess, g, d) + ahead * dot<W>(excess, u, d);
    for (i64 i = 0; i < n; i++) {
      const T *x = set.at(i);
      W p0 = set.p0[i], t = set.along[i], near = length * p0, far = m0 * set.gaps[i];
      W q = near < far ? near - m0 * t : far - rest * p0, share = set.w[i] * of.inverse;
      W turn = share * (length * gu * c) / p0, across = turn * m0 * set.beside[i], last = turn * m0 * p0;
      W straight = turn * q + across * set.slant[i] + share * ahead;
      r.a.at(i * r.k).point(0, d, [=](i64 k) {
        return share * g[k] + straight * u[k] - across * (x[k] - t * u[k]) + last * excess[k];
      });
      W gp = (set.pg[i] + ahead * set.slant[i] - set.slant[i] * gu) * set.beside[i];
      W gw = (gp - p0 * eg - (m0 * gu * c) * q) * of.inverse;
      r.b.one(j * n + i, of.total < 64 * tiny<W> ? W(0) : gw / of.total);
    }
    if (r.of_c) {
      bend = 1 - of.s0 * bend * of.inverse * of.inverse;
      *r.of_c += W(-0.5) * (length * gu * bend / c + own / (c * c));
    }
  }
}

// The numbers of a call, as _extension.py packs them.
struct Call {
  i64 operation, backward, type, threads, k, n, m, axes;
  const i64 *shape, *operands;
  const i64 *operand(int i) const { return operands + i * (2 + axes); }  // address, whether a sum, strides
};

template <class T, class W> void rows(const Call &call, i64 begin, i64 end) {
  if (begin == end) return;
  std::vector<W> scratch(8 * call.n + 2 * call.k);
  i64 index[64], rest = begin, last = call.axes - 1, offset[7]{}, step[7]{};
  for (i64 a = call.axes; a-- > 0; rest /= call.shape[a]) index[a] = rest % call.shape[a];
  auto begun = [&] {  // where the vectors of `index` are
    for (int o = 0; o < (call.backward ? 7 : 4); o++) {
      offset[o] = 0, step[o] = call.operand(o)[2 + last];
      for (i64 a = 0; a < call.axes; a++) offset[o] += index[a] * call.operand(o)[2 + a];
    }
  };
  begun();
  for (i64 row = begin; row < end; row++) {
    auto read = [&](int o) { return (const T *)call.operand(o)[0] + offset[o]; };
    auto out = [&](int o) {
      const i64 *operand = call.operand(o);
      return Out<T, W>{operand[1] ? nullptr : (T *)operand[0], operand[1] ? (W *)operand[0] : nullptr}.at(offset[o]);
    };
    W c = ((const W *)call.operand(2)[0])[offset[2]];
    Row<T, W> r{read(0), read(1), nullptr, c, call.k, call.n, call.m, {}, {}, nullptr, scratch.data()};
    if (call.backward) {
      r.g = read(3), r.a = out(4), r.b = out(5);
      if (call.operand(6)[0]) r.of_c = (W *)call.operand(6)[0] + offset[6];
    } else r.a = out(3);
    switch (2 * call.operation + call.backward) {
      case 0: dist(r); break;
      case 1: dist_backward(r); break;
      case 2: logmap(r); break;
      case 3: logmap_backward(r); break;
      case 4: expmap(r); break;
      case 5: expmap_backward(r); break;
      case 6: centroid(r); break;
      case 7: centroid_backward(r); break;
    }
    if (++index[last] < call.shape[last]) {
      for (int o = 0; o < 7; o++) offset[o] += step[o];
      continue;
    }
    for (i64 a = call.axes; a-- > 0 && (a == last || ++index[a] == call.shape[a]);) index[a] = 0;
    begun();
  }
}

void work(const Call &call, i64 begin, i64 end) {
  if (call.type == 0) rows<float, float>(call, begin, end);
  else if (call.type == 1) rows<float, double>(call, begin, end);
  else rows<double, double>(call, begin, end);
}
}  // namespace

extern "C" void lorentz_run(const i64 *at) {
  Call call{at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at + 8, at + 8 + at[7]};
  i64 count = 1;
  for (i64 a = 0; a < call.axes; a++) count *= call.shape[a];
  std::vector<std::thread> pool;
  for (i64 t = 1; t < call.threads; t++)
    pool.emplace_back(work, std::cref(call), count * t / call.threads, count * (t + 1) / call.threads);
  work(call, 0, count / (call.threads > 1 ? call.threads : 1));
  for (auto &thread : pool) thread.join();
}
