// What is a long way between two hosts: TCP does not do there what it does in a data centre, and plans are others.
#pragma once

namespace ringcore {

constexpr double kLongWaySeconds = 2.5e-3;  // from end to end

}  // namespace ringcore
