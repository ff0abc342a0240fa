// Somebody was faster: what they changed, what you changed, where both touch the same, and three ways to go on.

import { changes, reapplied } from "../logic/paths";
import { ChangeList } from "../parts/diff_view";
import { Dialog } from "../parts/dialog";
import type { Config, Json } from "../types";

interface Props {
  base: Config;
  mine: { [key: string]: Json };
  theirs: Config;
  onTheirs: () => void;
  onMerged: (document: { [key: string]: Json }) => void;
  onClose: () => void;
}

export function Conflict({ base, mine, theirs, onTheirs, onMerged, onClose }: Props) {
  const merged = reapplied(base.config, mine, theirs.config);
  return (
    <Dialog title={`Version ${theirs.version} came before yours`} onClose={onClose} wide>
      <p>You edited version {base.version}. Nothing of yours was saved, and nothing is lost: choose how to go on.</p>
      <div class="columns">
        <section><h3>Changed meanwhile ({base.version} → {theirs.version})</h3><ChangeList changes={changes(base.config, theirs.config)} empty="Nothing that counts." /></section>
        <section><h3>Your changes</h3><ChangeList changes={merged.applied} empty="Nothing that counts." /></section>
      </div>
      {merged.clashes.length > 0 ? (
        <div class="trouble">
          <p>Both changed the same. If you reapply yours, these of theirs are replaced:</p>
          <ul>{merged.clashes.map(({ mine: own, theirs: other }) => <li key={own.path}><code>{other.path}</code>: theirs {JSON.stringify(other.after)}, yours {JSON.stringify(own.after)}</li>)}</ul>
        </div>
      ) : <p class="good-words"><span aria-hidden="true">●</span> They do not touch each other.</p>}
      <div class="buttons">
        <button type="button" onClick={onClose}>Go on editing {base.version}</button>
        <button type="button" onClick={onTheirs}>Take theirs, drop mine</button>
        <button type="button" class="primary" onClick={() => onMerged(merged.document)}>Reapply mine on {theirs.version}</button>
      </div>
      <p class="faint">Reapplying puts your changes into the editor on top of version {theirs.version}; you look at it, and save it yourself.</p>
    </Dialog>
  );
}
